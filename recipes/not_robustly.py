"""Do FIRE, randomized positions and index hints carry addition beyond its training?

Question: a decoder learns addition of up to 4 digits, reversed and with index hints: how many
    digits does it add with rotary positions, and with FIRE over randomized positions; and how much
    do seeds differ?
Expected: FIRE with randomized positions, reversed digits and hints reaches 2.5 times the training
    length; other positions do not; seeds vary widely (arXiv 2402.09371).
Measured: the order is confirmed (8 seeds), the reach is not. FIRE over randomized positions adds 5
    digits in 11 to 55 % of cases, by seed, and 6 in 0 to 29 %; rotary positions add 5 in 0 to 21 %.
    At 5 the difference is +38 points [+21, +55], confirmed after Holm's correction over nine
    lengths; at 6 it is +12 [+2, +21], undecided. Nothing reaches 2.5 times the training digits.
    Seeds differ within training: 4 digits 53 to 100 %, rotary 0 to 100 %. In 2,000 steps, with
    hints for 100 digits, rotary positions and FIRE did not learn 5 digits (2 seeds), so here are
    fewer digits and hints for 12. Two cores do not reach the paper's training on 40 digits.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "not_robustly"
RUNS: dict[str, dict[str, Any]] = {
    "hints": {
        "task": "addition-hints",
        "variants": ["rotary", "fire+randomized"],
        "train_lengths": "1..4",
        "lengths": "1,2,3,4,5,6,8,10,12",
        "vocab": 26,  # hints for 12 digits
        "context": 78,  # the tokens of 12 digits, and the one that comes next
        "learning_rate": 4e-3,
        "steps": 3000,
        "seeds": 8,
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
