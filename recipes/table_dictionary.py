"""Does LayerNorm on the attention output help dictionary lookup in larger sets than in training?

Question: trained on sets of 5 to 16 pairs of key and value, how often does one attention find the
    value of the key that is asked for among up to 16,384: baseline against LayerNorm, paired?
Expected: LayerNorm is significantly better beyond the training lengths (arXiv 2504.02827). The
    paper's table and its definition of the task could not be read; the task here is our own.
Measured: confirmed from 16 to 4,096 items, at desk scale (5,000 steps, cosine, 32 seeds, 1,024 sets
    a length, gradients clipped at 1). In points: +0.2 [+0.1, +0.3] at 16 (baseline 99.5 %), most at
    1,024 with +4.1 [+2.7, +5.5] (72.7 %), +2.2 [+0.6, +3.8] at 4,096 (45.9 %). Undecided at 8,192,
    +0.1 [-1.3, +1.5], and 16,384, -0.1 [-1.4, +1.2].
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from llmprobe import LLMProbeError, train_synthetic

NAME = "table_dictionary"
SMALL = {"width": 32, "learning_rate": 5e-3}  # learns in seconds, decides nothing
SCALES = {
    "quick": {"seeds": 3, "steps": 200, "lengths": "16..128", "sets": 64, **SMALL},
    "desk": {"preset": "desk"},
    "paper": {"preset": "paper"},
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    output: Annotated[Path, typer.Option(help="Folder for figure and result.")] = Path("figures"),
) -> None:
    result = train_synthetic(
        "dictionary",
        ["baseline", "layernorm"],
        output=Path("runs") / NAME / scale,
        **SCALES[scale],
    )
    if os.environ.get("RANK", "0") != "0":  # one of several processes shows the result
        return
    print(result.headline(), *result.warnings, sep="\n")
    print(f"\naccuracy in %, mean over {len(result.seeds)} seeds")
    accuracy = result.summary_frame().pivot(index="length", columns="variant", values="mean")
    print((100 * accuracy[list(result.variants)]).round(1).to_string())
    print("\ndifference in points, paired over seeds, 95 % interval; Holm over the lengths")
    points = result.compare_frame()
    points[["difference", "low", "high"]] = (100 * points[["difference", "low", "high"]]).round(1)
    print(points.to_string(index=False, formatters={"p": "{:.2g}".format}))
    print(result.reading())
    result.save(output / NAME, overwrite=True)
    for ending in ("png", "pdf"):
        result.save_figure(output / f"{NAME}.{ending}", "accuracy")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
