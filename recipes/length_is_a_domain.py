"""Does a decoder fail on strings shorter and longer than those of training?

Question: a decoder learns string editing (copy, reverse, push, unshift) on 10 to 15 letters alone:
    what does it do with shorter and with longer ones? And if a training sequence is three examples
    one after another?
Expected: it fails outside the lengths of training, on both sides; concatenation is the cure
    (arXiv 2109.07276).
Measured: confirmed on both sides: right on 10 to 15 letters, 0 at 8 and at 18, for all four tasks
    (learned positions, 4 seeds). Three examples in a row do not change it, for copying or push.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from leaderboard import train_runs

from llmprobe import LLMProbeError

NAME = "length_is_a_domain"
EDITING: dict[str, Any] = {"variants": ["learned"], "train_lengths": "10..15"}
EDITING |= {"lengths": "2,4,6,8,10,12,15,18,24,30,45", "steps": 2000}
RUNS: dict[str, dict[str, Any]] = {
    "copy": {"task": "copy", **EDITING},
    "reverse": {"task": "reverse", **EDITING},
    "push": {"task": "push", **EDITING},
    "unshift": {"task": "unshift", **EDITING},
    "copy_joined": {"task": "copy", **EDITING, "concatenate": 3},
    "push_joined": {"task": "push", **EDITING, "concatenate": 3},
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
