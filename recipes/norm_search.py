"""Where does a norm on the attention help sets larger than in training, over many settings?

Question: of many random settings (steps, rate and schedule, weight decay, width, heads, MLP layers,
    training lengths, W_O, residual), in how many does a norm raise accuracy at 4, 16, 64 and 256
    times the training length, at which place does it stand, and which settings decide?
Expected: LayerNorm helps beyond the training lengths (arXiv 2504.02827; its settings are not
    public). A colder softmax at test time (`adaptive`) is the positive control.
Measured: argmax, the first 16 of 64 settings, at 64 times the training length: no norm is decided.
    LayerNorm +2.9 [−1.3, +7.0] points, gains in 9 settings and loses in 4; headnorm +0.8 [−4.2,
    +5.7], concatnorm +3.2 [−2.5, +8.9], postnorm +1.9 [−2.4, +6.3]; `adaptive` +8.1 [+4.9, +11.3],
    confirmed. Dictionary: nothing yet. A difference of up to 1 point is equivalent, which was
    fixed before.

Several processes share the trainings: torchrun --nproc_per_node 2 recipes/norm_search.py. Where
time is short, train a few settings at a time (--settings 16, then --first-seed 16 --settings 16):
finished ones are joined. On another machine give what is saved already: --join FOLDER.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from llmprobe import LLMProbeError, merge_results, search_synthetic

NAME = "norm_search"
SCALES = {
    "quick": {"n": 6, "steps": 100, "sets": 32, "lengths": (1, 4), "batch": 16},
    "desk": {"preset": "desk", "n": 64},
    "paper": {"preset": "paper", "n": 512},
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    task: Literal["argmax", "dictionary"] = "argmax",
    steps: Annotated[int | None, typer.Option(help="The most; drawn from a 25th of it on.")] = None,
    first_seed: Annotated[int, typer.Option(help="Of --settings.")] = 0,
    settings: Annotated[int | None, typer.Option(help="So many alone; joined with others.")] = None,
    join: Annotated[
        Path | None, typer.Option(help="With --settings: a saved result of other settings.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for figures and result.")] = Path("figures"),
) -> None:
    name = f"{NAME}_{task}"
    given = SCALES[scale] | ({} if steps is None else {"steps": steps})
    whole = Path("runs") / name / (scale if steps is None else f"{scale}_{steps}")
    place = whole
    if settings is not None:
        given |= {"n": settings}
        place = whole.with_name(f"{whole.name}_from_{first_seed}")
    result = search_synthetic(task, first_seed=first_seed, output=place, **given)
    if os.environ.get("RANK", "0") != "0":  # one of several processes shows the result
        return
    done = [file.parent for file in sorted(whole.parent.glob(f"{whole.name}_from_*/result.json"))]
    done += [] if join is None else [join]
    if settings is not None and len(done) > 1:
        result = merge_results(done, whole, overwrite=True)
    print(result.headline(), *result.warnings, result.reading(), sep="\n")
    for frame in (result.effect_frame(), result.tree_frame(), result.correlation_frame()):
        print(f"\n{frame.to_string(index=False, float_format='{:.3g}'.format)}")
    result.save(output / name, overwrite=True)
    for ending in ("png", "pdf"):
        result.save_figure(output / f"{name}.{ending}", "effects")
        result.save_figure(output / f"{name}_settings.{ending}", "settings")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
