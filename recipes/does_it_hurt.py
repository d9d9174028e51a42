"""Does it hurt? What heads do with length, and what the loss is without them.

Question: does a model still need heads that lose their variance; and does the loss without a head
    go with its slope, with its dispersion, or with its attention on the source of an answer?
Expected: if lost variance is what hurts, heads that lose it matter less at length, and those that
    attend to the source matter most.
Measured: partly. SmolLM2-135M-Instruct (dequantized Q4_1), 8 windows of WikiText-2, 512 tokens:
    heads that keep their variance are needed more than random ones, those that lose it less. Head
    by head the loss hardly goes with any of the three (figures/README.md).
"""

from pathlib import Path
from typing import Annotated, Literal

import matplotlib.pyplot as plt
import numpy as np
import typer

import llmprobe
from llmprobe import LLMProbeError, load_result, probe_ablation, rank_correlation

NAME = "does_it_hurt"
SCALES = {
    "quick": {"model": "builtin", "lengths": "16..64", "n_prompts": 16, "each": "16,32"},
    "desk": {"model": "HuggingFaceTB/SmolLM2-135M", "lengths": "16..512", "n_prompts": 64}
    | {"each": "16,128"},
    "paper": {"model": "meta-llama/Llama-3.2-1B", "lengths": "16..4096", "n_prompts": 256}
    | {"each": "16,256,4096"},
}
N_SOURCE = 10
"""Heads in the class that attends most to the source."""


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    model: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to predict; builtin has its own.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
    redraw: Annotated[bool, typer.Option("--redraw", help="From the saved results.")] = False,
) -> None:
    """Every part keeps its folder, so the same command resumes."""
    if not redraw:
        measure(scale, model, text or "builtin", output / NAME)
    draw(output / NAME, output)


def measure(scale: str, model: str | None, text: str | Path, folder: Path) -> None:
    size = SCALES[scale]
    loaded, n = llmprobe.load_model(model or size["model"]), size["n_prompts"]
    drawn = {"layers": "all", "n_prompts": n, "prompts": "unigram", "text": text}
    variance = llmprobe.probe_variance(
        loaded, size["lengths"], at="heads", output=folder / "variance", **drawn
    )
    llmprobe.probe_attention(loaded, size["lengths"], output=folder / "attention", **drawn)
    longest = max(llmprobe.parse_lengths(size["lengths"]))
    retrieval = llmprobe.probe_retrieval(
        loaded, longest, layers="all", n_prompts=n, output=folder / "retrieval"
    )
    most = np.argsort(-retrieval.source[:, -1])[:N_SOURCE]
    chosen = {"source": [(retrieval.layer[k], retrieval.head[k]) for k in most]}
    for layer, head, label in zip(variance.layer, variance.head, variance.labels(), strict=True):
        if label != "undecided":
            chosen.setdefault(str(label), []).append((layer, head))
    classes = {
        name: ",".join(f"{layer}.{head}" for layer, head in some) for name, some in chosen.items()
    }
    scored = {"text": text, "seed": 1, "n_prompts": max(4, n // 8)}
    probe_ablation(
        loaded, size["lengths"], heads=classes, n_controls=2, output=folder / "classes", **scored
    )
    probe_ablation(
        loaded, size["each"], heads="each", n_controls=0, output=folder / "each", **scored
    )


def heads_table(folder: Path):
    """A row for each head: slopes, attention on the source, and the loss without it."""
    found = {n: load_result(folder / n) for n in ("variance", "attention", "retrieval", "each")}
    keys, source = ["layer", "head"], found["retrieval"].to_frame()
    parts = (
        found["attention"].head_frame()[[*keys, "slope_dispersion"]],
        source[source.length == source.length.max()][[*keys, "source"]],
        found["each"].head_frame()[[*keys, "change"]],
    )
    table = found["variance"].decay_frame()[[*keys, "slope", "label"]]
    for part in parts:
        table = table.merge(part, on=keys)
    return table


def draw(folder: Path, output: Path) -> None:
    """The figure and the sentences, from the saved results."""
    classes, table = load_result(folder / "classes"), heads_table(folder)
    table.to_csv(folder / "heads.csv", index=False, float_format="%.6g")
    print(classes.headline(), classes.reading(), sep="\n")
    for what in ("slope", "slope_dispersion", "source"):
        known = table[[what, "change"]].dropna().to_numpy().T
        print(
            f"{what}: Spearman {{:+.2f}} [{{:+.2f}}, {{:+.2f}}]".format(*rank_correlation(*known))
        )
    with llmprobe.paper_style():
        _, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
        classes.plot(ax=left)
        shown = {"c": table.source, "s": 8, "cmap": "viridis", "linewidths": 0}
        points = right.scatter(table.slope_dispersion, table.change, **shown)
        plt.colorbar(points, ax=right, label="attention on the source", aspect=30)
        right.set_yscale("symlog", linthresh=1e-3)
        right.axhline(0, color="0.55", lw=1, ls=":")
        right.set_xlabel("slope of dispersion, by head")
        right.set_ylabel("nats per token without the head")
        for ending in ("png", "pdf"):
            plt.savefig(output / f"{NAME}.{ending}", dpi=200)
        plt.close()


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LLMProbeError, OSError) as error:
        raise SystemExit(f"{NAME}: {error}") from error
