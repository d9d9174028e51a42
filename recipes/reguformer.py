"""Does attention of a few items alone carry sets beyond their training?

Question: argmax retrieval and majority, where only the strongest items or queries attend (sparse,
    sparse-keys), or as many chosen by lot: what changes for larger inputs?
Expected: choosing the strongest keeps quality and adds robustness to noise, a random choice does
    not (arXiv 2212.14246).
Measured: argmax confirmed: sparse equals full attention, -0.1 points [-0.9, +0.7] at 1,024 items, a
    random choice loses 42 [40, 45]; entmax gains 12 [10, 14] (8 seeds). Majority undecided for
    queries; choosing keys hurts, -34 points [-46, -22] (4 seeds).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "reguformer"
RUNS: dict[str, dict[str, Any]] = {
    "argmax": {
        "task": "argmax",
        "variants": ["baseline", "sparse", "sparse-random", "entmax"],
        "lengths": "16..1024",
        "seeds": 8,
        "steps": 3000,
    },
    "majority": {
        "task": "majority",
        "variants": ["nope", "nope+sparse", "nope+sparse-keys", "nope+sparse-random"],
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
