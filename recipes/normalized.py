"""Does attention without softmax keep its variance, and does it help larger sets?

Question: argmax retrieval, dictionary lookup and majority with standardized logits in place of a
    softmax (normalized): how much more is right beyond the training lengths?
Expected: the variance of the output does not fall with the number of items, and sets of other sizes
    are handled better (arXiv 2005.09561).
Measured: reversed: -39 points [-40, -38] on argmax and -47 [-50, -44] on dictionary at 1,024 items
    (8 seeds); majority undecided (4 seeds).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "normalized"
SETS: dict[str, Any] = {"variants": ["baseline", "normalized"], "lengths": "16..1024"}
SETS |= {"seeds": 8, "steps": 3000}
RUNS: dict[str, dict[str, Any]] = {
    "argmax": {"task": "argmax", **SETS},
    "dictionary": {"task": "dictionary", **SETS},
    "majority": {
        "task": "majority",
        "variants": ["nope", "nope+normalized"],
        "train_lengths": "5..20",
        "lengths": "5,11,21,31,61,121",
        "steps": 1500,
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
