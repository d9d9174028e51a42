"""Can a trained softmax be swapped for linear attention?

Question: a decoder learns to recall values by keys with softmax attention; if the softmax is then
    replaced by ReLU features and fine-tuned (linear-swap), does it answer as well as with softmax,
    and better than trained with linear attention from the beginning?
Expected: fine-tuning keeps most of the quality at linear cost, and beats linear attention from
    scratch (arXiv 2103.13076).
Measured: undecided: two of 4 seeds learn recall at all. Of 8 pairs 50 % are right with softmax,
    34 % after the swap, none with linear attention from the beginning.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "t2r"
RUNS: dict[str, dict[str, Any]] = {
    "recall": {
        "task": "recall",
        "variants": ["rotary", "rotary+linear", "rotary+linear-swap"],
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
