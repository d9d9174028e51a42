"""Which heads of a language model lose their variance as prompts grow, and is dispersion the cause?

Question: at which layers and heads does the standard deviation over prompts of a head's output fall
    with the length; and does a head fall as fast as the dispersion of its weights predicts?
Expected: heads that spread over all tokens fall as N^-0.5 (Proposition 1, arXiv 2504.02827), those
    that look at a few do not; the predicted variance, that of the values times E[Σa²], falls
    fastest in the heads where the measured one does.
Measured: partly. SmolLM2-135M-Instruct (dequantized Q4_1), unigrams of WikiText-2's test split,
    fixed query, 32 prompts, 16 to 1,024 tokens: of 270 heads 173 fall and 28 rise (95 % interval of
    each head, not corrected for their number), 8 are near -0.5, 7 of them in the first two layers;
    the median is -0.09, the slopes go from -0.49 to +0.94. Over all heads the slopes of measured
    and predicted variance hardly agree: Spearman +0.22 [+0.10, +0.34]. They agree in the 38 heads
    that give the first token under 0.05 of their weight, +0.94 [+0.84, +0.98], and go against each
    other in the 100 that give it over 0.6, -0.48 [-0.63, -0.30], whose variance is 0.01 to 0.02 of
    the predicted one in the median. These bounds were chosen after seeing the map: to be held
    against another model.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from scipy.stats import bootstrap, spearmanr

from llmprobe import LLMProbeError, fit_decay, load_model, probe_attention, probe_variance

NAME = "head_decay_map"
SCALES = {
    "quick": {"model": "builtin", "lengths": "16..128", "n_prompts": 16},
    "desk": {"model": "HuggingFaceTB/SmolLM2-135M", "lengths": "16..1024", "n_prompts": 32},
    "paper": {"model": "meta-llama/Llama-3.2-1B", "lengths": "16..16384", "n_prompts": 256},
}

SINKS = (0, 0.05, 0.3, 0.6, 1)
"""Bounds of the first token's weight, mean over lengths; chosen after the first map was seen."""
FEW = 8
"""Heads that are too few for a correlation."""


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    model: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    text: Annotated[Path | None, typer.Option(help="Unigrams of it; else random tokens.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
) -> None:
    size = SCALES[scale]
    loaded = load_model(model or size["model"])
    options = {
        "layers": None,
        "prompts": "unigram" if text else "random",
        "text": text,
        "query": "fixed",
        "n_prompts": size["n_prompts"],
    }
    variance = probe_variance(loaded, size["lengths"], at="heads", **options)
    variance.save(output / NAME, overwrite=True)
    for ending in ("png", "pdf"):
        variance.save_figure(output / f"{NAME}.{ending}", "heads")
    print(variance.headline(), variance.reading(), sep="\n")
    by_layer = variance.decay_frame().groupby("layer").slope
    print(by_layer.agg(["min", "median", "max"]).round(2).to_string())

    attention = probe_attention(loaded, size["lengths"], **options)
    attention.save(output / f"{NAME}_attention", overwrite=True)
    compare(attention)
    print(*attention.remarks(), sep="\n")


def compare(attention):
    """Print how the measured variance of heads agrees with the predicted one."""
    measured, predicted = attention.measured_variance, attention.predicted_variance
    slopes = np.array([fit_decay(attention.lengths, v).slope for v in (measured, predicted)])
    known = np.isfinite(slopes).all(axis=0)
    if not known.any():
        print("This model does not show its values: nothing is predicted.")
        return
    first = attention.first.mean(axis=1)
    print("slopes of measured and predicted variance over heads; measured / predicted, median")
    for low, high in ((0, 1), *pairwise(SINKS)):
        chosen = known & (first >= low) & (first <= high)
        if chosen.sum() < FEW:
            continue
        ratio = np.median((measured / predicted)[chosen][:, [0, -1]], axis=0)
        print(
            f"first token's weight {low} to {high}: {chosen.sum()} heads, Spearman "
            "{:+.2f} [{:+.2f}, {:+.2f}]".format(*correlation(*slopes[:, chosen]))
            + f"; {ratio[0]:.2f} at {attention.lengths[0]} tokens, {ratio[1]:.2f} at "
            f"{attention.lengths[-1]}"
        )


def correlation(a, b):
    """Spearman's rank correlation over heads, and its 95 % interval by a bootstrap over them."""

    def rank(x, y):
        return spearmanr(x, y).statistic

    interval = bootstrap(
        (a, b), rank, paired=True, vectorized=False, n_resamples=1999, method="percentile", rng=0
    ).confidence_interval
    return rank(a, b), interval.low, interval.high


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LLMProbeError, OSError) as error:
        raise SystemExit(f"{NAME}: {error}") from error
