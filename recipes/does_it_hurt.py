"""Does it hurt? What heads do with length, and what the loss is without them.

Question: does a model still need heads that lose their variance; and does the loss without a head
    go with its slope, with its dispersion, or with its attention on the source of an answer?
Expected: if lost variance is what hurts, heads that lose it matter less at length, and those that
    attend to the source matter most.
Measured: partly. SmolLM2-135M-Instruct (dequantized Q4_1), 4 windows of WikiText-2: heads that keep
    their variance are needed more than random ones, those that lose it less, up to 1,024 tokens;
    head by head the loss goes with none of the three. Qwen2.5-Coder-1.5B-Instruct (dequantized
    Q4_K_M): one of nine links, with attention on the source given 1,024 tokens, ρ +0.35.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import typer

import llmprobe
from llmprobe import LLMProbeError, load_result, probe_ablation, rank_correlation

NAME = "does_it_hurt"
CASES: dict[str, tuple[str, str, int, int, tuple[int, ...], int, int]] = {
    # model, lengths, prompts; tokens that are predicted, contexts before them, windows of text;
    # one of how many layers has each of its heads ablated
    "quick": ("builtin", "16..64", 16, 8, (16, 64), 4, 1),
    "smollm2": ("HuggingFaceTB/SmolLM2-135M", "16..1024", 64, 64, (16, 256, 4096), 4, 1),
    "qwen": ("Qwen/Qwen2.5-Coder-1.5B", "16..256", 32, 16, (16, 256, 1024), 4, 4),
    "paper": ("meta-llama/Llama-3.2-1B", "16..4096", 256, 64, (16, 256, 4096), 64, 1),
}
N_SOURCE = 10  # heads in the class that attends most to the source


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    case: Annotated[str, typer.Option(help="At the scale desk: smollm2 or qwen.")] = "smollm2",
    model: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to predict; builtin has its own.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
    redraw: Annotated[bool, typer.Option("--redraw", help="From the saved results.")] = False,
) -> None:
    folder = output / (NAME if case == "smollm2" else f"{NAME}_{case}")
    if not redraw:
        measure(case if scale == "desk" else scale, model, text or "builtin", folder)
    draw(folder)


def measure(case: str, model: str | None, text: str | Path, folder: Path) -> None:
    name, lengths, n, n_targets, contexts, n_windows, every = CASES[case]
    loaded = llmprobe.load_model(model or name)
    asked: dict[str, Any] = {"text": text, "seed": 1, "n_prompts": n_windows}
    # The same tokens given more and more context; a length counts these tokens too.
    aimed = {"same_targets": n_targets, **asked}
    reached = [n_targets + context for context in contexts]
    layers = llmprobe.attention_layers(loaded)[::every]
    each = {f"{x.layer}.{head}": f"{x.layer}.{head}" for x in layers for head in range(x.n_heads)}
    probe_ablation(loaded, reached, heads=each, n_controls=0, output=folder / "each", **aimed)
    drawn = {"layers": "all", "n_prompts": n}
    retrieval = llmprobe.probe_retrieval(
        loaded, max(llmprobe.parse_lengths(lengths)), output=folder / "retrieval", **drawn
    )
    drawn |= {"prompts": "unigram", "text": text}
    llmprobe.probe_attention(loaded, lengths, output=folder / "attention", **drawn)
    drawn |= {"at": "heads", "output": folder / "variance"}
    variance = llmprobe.probe_variance(loaded, lengths, **drawn)
    most = np.argsort(-retrieval.source[:, -1])[:N_SOURCE]
    chosen = {"source": [f"{retrieval.layer[k]}.{retrieval.head[k]}" for k in most]}
    for layer, head, label in zip(variance.layer, variance.head, variance.labels(), strict=True):
        if label != "undecided":
            chosen.setdefault(str(label), []).append(f"{layer}.{head}")
    classes = {name: ",".join(heads) for name, heads in chosen.items()}
    for name, some, how in (("classes", lengths, asked), ("targets", reached, aimed)):
        probe_ablation(loaded, some, heads=classes, n_controls=2, output=folder / name, **how)


def heads_table(folder: Path):
    """A row for each head: slopes, attention on the source, and the loss without it."""
    found = {n: load_result(folder / n) for n in ("variance", "attention", "retrieval", "each")}
    keys, source = ["layer", "head"], found["retrieval"].to_frame()
    table = found["variance"].decay_frame()[[*keys, "slope", "label"]]
    table = table.merge(found["attention"].head_frame()[[*keys, "slope_dispersion"]], on=keys)
    table = table.merge(source[source.length == source.length.max()][[*keys, "source"]], on=keys)
    rows = found["each"].to_frame()
    rows[keys] = rows["heads"].str.split(".", expand=True).astype(int)
    changes = rows.pivot(index=keys, columns="start", values="change").add_prefix("change_")
    return table.merge(changes.reset_index(), on=keys)


def draw(folder: Path) -> None:
    """The figure and the sentences, from the saved results."""
    classes, table = load_result(folder / "classes"), heads_table(folder)
    table.to_csv(folder / "heads.csv", index=False, float_format="%.6g")
    for result in (classes, load_result(folder / "targets")):
        print(result.headline(), result.reading(), sep="\n")
    changes = [column for column in table if column.startswith("change_")]
    for what in ("slope", "slope_dispersion", "source"):
        for change in changes:
            known = table[[what, change]].dropna().to_numpy().T
            rho = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*rank_correlation(*known))
            print(f"{what}, {change}: Spearman {rho}")
    with llmprobe.paper_style():
        _, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
        classes.plot(ax=left)
        points = right.scatter(table.slope_dispersion, table[changes[-1]], s=8, c=table.source)
        plt.colorbar(points, ax=right, label="attention on the source", aspect=30)
        right.set_yscale("symlog", linthresh=1e-3)
        right.axhline(0, color="0.55", lw=1, ls=":")
        n = int(changes[-1].removeprefix("change_"))
        right.set_xlabel("slope of dispersion, by head")
        right.set_ylabel(f"nats per token without the head,\n{n:,} tokens of context")
        for ending in ("png", "pdf"):
            plt.savefig(folder.with_name(f"{folder.name}.{ending}"), dpi=200)


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LLMProbeError, OSError) as error:
        raise SystemExit(f"{NAME}: {error}") from error
