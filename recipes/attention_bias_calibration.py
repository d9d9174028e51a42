"""Does a bias along the lines of a first training carry tasks beyond its lengths?

Question: a decoder learns the successor and running parities of up to 10 tokens; trained again with
    attention kept on the lines along which the first training attends (calibrated), how long are
    the inputs that it answers?
Expected: more than 99 % right at 10 times the length of training (arXiv 2310.11984).
Measured: not here: calibrated variants are at 0 from 15 tokens on, and worse below 10. The bias is
    read off the longest training sequence, and the distance from an answer's digit to that of the
    question depends on the length, which padded inputs would avoid (4 seeds).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "attention_bias_calibration"
RUNS: dict[str, dict[str, Any]] = {
    "successor": {
        "task": "successor",
        "variants": ["rotary", "rotary+calibrated", "nope", "nope+calibrated"],
        "train_lengths": "1..10",
        "lengths": "5,10,15,20,40,60,100",
        "steps": 2000,
    },
    "parity": {
        "task": "parity-steps",
        "variants": ["rotary", "rotary+calibrated", "nope", "nope+calibrated"],
        "train_lengths": "1..10",
        "lengths": "5,10,15,20,40,60,100",
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
