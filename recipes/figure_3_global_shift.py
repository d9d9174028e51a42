"""Figure 3 of arXiv 2504.02827: the attention output as LayerNorm sees it, beyond trained lengths.

Question: how far does the global mean of an attention output drift, and how far does its global
    variance fall (both over features), as sets outgrow those of training?
Expected: without a norm the mean drifts and the variance decays; LayerNorm keeps both (Figure 3 of
    the paper).
Measured: the variance as expected, at desk scale (dictionary, 5,000 steps, cosine, 32
    seeds, 1,024 sets a length). From 16 to 16,384 items the global variance falls from 0.340
    [0.334, 0.347] to 0.0144 [0.0139, 0.0148] without a norm and stays with LayerNorm, 1.167
    [1.164, 1.170] to 1.158 [1.153, 1.162]. The mean drifts either way, so the signed drift cancels
    over seeds. Its root mean square, over the variance at 16, is 0.0040 [0.0032, 0.0053] without
    and 0.00097 [0.00078, 0.0013] with LayerNorm; this run did not keep the noise of its sets.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from llmprobe import LLMProbeError, train_synthetic

NAME = "figure_3_global_shift"
SCALES = {
    "quick": {"seeds": 3, "steps": 200, "lengths": "16..128", "sets": 64}
    | {"width": 32, "learning_rate": 5e-3},
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
        output=Path("runs") / "table_dictionary" / scale,  # the networks of that table
        **SCALES[scale],
    )
    if os.environ.get("RANK", "0") != "0":  # one of several processes shows the result
        return
    frame = result.shift_frame()
    ends = frame[frame.length.isin([result.reference, result.lengths[-1]])]
    print(f"means over {len(result.seeds)} seeds, 95 % intervals; {result.n_sets[0]} sets a length")
    print(ends.to_string(index=False, float_format="{:.4g}".format))
    drift = result.drift_frame()
    drift = drift[drift.length == result.lengths[-1]]
    print(drift.to_string(index=False, float_format="{:.3g}".format))
    print(result.tail_frame().to_string(index=False, float_format="{:.3g}".format))
    result.save(output / NAME, overwrite=True)
    for ending in ("png", "pdf"):
        result.save_figure(output / f"{NAME}.{ending}", "shift")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
