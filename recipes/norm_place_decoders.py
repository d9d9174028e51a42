"""Does post-norm resharpen attention, so that a decoder knows what may follow longer inputs?

Question: a GPT on set complement, or on Othello, without a norm, with LayerNorm before each branch
    (prenorm), after each sum (postnorm) and on what a branch adds (subnorm), with raw weights and
    their EMA: beyond the training lengths, which is closest to the allowed tokens, and how spread
    is attention?
Expected: post-norm resharpens attention and helps, EMA helps too (arXiv 2510.08341, second
    version, whose place of the norm and tasks could not be read; so there are two places here).
Measured: nothing yet. Differences of up to 1 point, or 0.01 nats of KL, are equivalent, which was
    fixed before.

Several processes share the trainings:
    torchrun --nproc_per_node 2 recipes/norm_place_decoders.py
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llmprobe import LLMProbeError, train_synthetic

NAME = "norm_place_decoders"
# The first is the one that the others are compared with. Othello's baseline has a prenorm.
PLACES = {
    "set-complement": ["mlp", "mlp+prenorm", "mlp+postnorm", "mlp+subnorm"],
    "othello": ["nonorm", "prenorm", "postnorm", "subnorm"],
}
SMALL = {"seeds": 2, "steps": 60, "sets": 64, "width": 16}
SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "set-complement": {
        "quick": {**SMALL, "vocab": 8, "train_lengths": "1..2"},
        "desk": {"preset": "desk", "seeds": 16, "layers": 2, "width": 64},
        "paper": {"preset": "paper", "layers": 2, "width": 64},
    },
    "othello": {
        "quick": {**SMALL, "heads": 2},
        "desk": {"preset": "desk", "seeds": 8, "steps": 5000, "width": 64, "layers": 3},
        "paper": {"preset": "paper", "seeds": 8},
    },
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    task: Literal["set-complement", "othello"] = "set-complement",
    schedule: Annotated[str, typer.Option(help="constant or cosine.")] = "constant",
    output: Annotated[Path, typer.Option(help="Folder for figures and result.")] = Path("figures"),
) -> None:
    name = f"{NAME}_{task}_{schedule}"
    variants = [*PLACES[task], *(f"{place}+ema" for place in PLACES[task])]
    place = Path("runs") / name / scale
    settings = SCALES[task][scale]
    result = train_synthetic(task, variants, schedule=schedule, output=place, **settings)
    if os.environ.get("RANK", "0") != "0":  # one of several processes shows the result
        return
    print(result.headline(), *result.warnings, sep="\n")
    print(result.beyond_frame().to_string(index=False))
    print("\nentropy of attention at the longest input, nats, against the first")
    spread = result.compare_frame("entropy")
    print(spread[spread.length == result.lengths[-1]].to_string(index=False))
    print(*result.remarks())
    result.save(output / name, overwrite=True)
    for ending in ("png", "pdf"):
        result.save_figure(output / f"{name}.{ending}", "kl")
        result.save_figure(output / f"{name}_entropy.{ending}", "entropy")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
