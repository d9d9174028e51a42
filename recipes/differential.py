"""Does the difference of two softmaxes find items in larger inputs?

Question: argmax retrieval, dictionary lookup and recall with differential attention: how much more
    is right beyond the training lengths than with one softmax?
Expected: less attention on what does not matter, so better retrieval from long contexts (arXiv
    2410.05258).
Measured: dictionary confirmed, +8.2 points [+4.1, +12.3] at 1,024 items; argmax reversed, -9.9
    [-11.9, -7.9] (8 seeds); recall undecided (4 seeds).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "differential"
SETS: dict[str, Any] = {"variants": ["baseline", "differential"], "lengths": "16..1024"}
SETS |= {"seeds": 8, "steps": 3000}
RUNS: dict[str, dict[str, Any]] = {
    "argmax": {"task": "argmax", **SETS},
    "dictionary": {"task": "dictionary", **SETS},
    "recall": {
        "task": "recall",
        "variants": ["rotary", "rotary+differential"],
        "train_lengths": "2..8",
        "lengths": "4,8,12,16,24",
        "steps": 2000,
    },
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    only: Annotated[str | None, typer.Option(help=f"One of {', '.join(RUNS)}.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for figures and results.")] = Path("figures"),
) -> None:
    train_runs(NAME, RUNS, scale=scale, only=only, output=output)


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
