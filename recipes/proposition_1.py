"""Proposition 1 of arXiv 2504.02827: with one query, features of attention lose their variance.

Question: tokens drawn independently, no positions, one attention: does the standard deviation over
    prompts of its output features fall as N^-0.5 where the query is fixed, and where it is not?
Expected: slope -0.5 with a fixed query (the variance falls as 1/N). With a free one what depends on
    the query stays: nothing in argmax retrieval, whose query means nothing, much in dictionary
    lookup, which is all about it. Trained attention is sharp, so the law sets in late.
Measured: four seeds each, trained 5,000 steps, 256 prompts, 1,024 to 16,384 items. Argmax: -0.504
    to -0.515 with a fixed query, and the same with a free one. Dictionary: -0.41 to -0.49 with a
    fixed query, so the law has not quite set in (intervals of +-0.02), -0.18 to -0.21 with a free
    one.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer
from matplotlib import pyplot as plt

from llmprobe import (
    LLMProbeError,
    load_result,
    load_synthetic,
    paper_style,
    probe_variance,
    train_synthetic,
)

NAME = "proposition_1"
TASKS, QUERIES = ("argmax", "dictionary"), ("fixed", "free")
SCALES = {
    "quick": {
        "training": {"seeds": 1, "steps": 50, "width": 16, "sets": 16},
        "probe": {"lengths": "16..512", "n_prompts": 64},
    },
    "desk": {
        "training": {"seeds": 4, "steps": 5000, "sets": 64},
        "probe": {"lengths": "1024..16384", "n_prompts": 256},
    },
    "paper": {
        "training": {"seeds": 8, "steps": 100_000, "sets": 64},
        "probe": {"lengths": "1024..65536", "n_prompts": 1024},
    },
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
    redraw: Annotated[bool, typer.Option("--redraw", help="From the saved results.")] = False,
) -> None:
    if not redraw:
        measure(SCALES[scale], Path("runs") / NAME / scale, output / NAME)
    with paper_style():
        figure = draw(output / NAME)
        for ending in ("png", "pdf"):
            figure.savefig(output / f"{NAME}.{ending}", dpi=200)


def measure(size, runs, folder):
    """Train both tasks, probe each seed with both kinds of query, save the results."""
    for task in TASKS:
        run = runs / task
        trained = train_synthetic(task, "baseline", lengths="16", output=run, **size["training"])
        for seed in trained.seeds:
            network = load_synthetic(run, "baseline", seed=seed)
            for query in QUERIES:
                result = probe_variance(network, query=query, **size["probe"])
                result.save(folder / f"{task}_{query}_{seed}", overwrite=True)
                slope, low, high = (
                    getattr(result, f"slope_{result.tested}{end}")[0]
                    for end in ("", "_low", "_high")
                )
                print(
                    f"{task}, {query} query, seed {seed}: slope {slope:+.3f}, 95 % interval "
                    f"{low:+.3f} to {high:+.3f} over {result.n_prompts.min()} prompts; the law "
                    "says −0.5"
                )


def draw(folder):
    """A panel for each task, of seed 0."""
    figure, panels = plt.subplots(1, 2, figsize=(6.75, 2.6), layout="constrained")
    for task, panel in zip(TASKS, panels, strict=True):
        panel.set_title(f"{task}, seed 0")
        results = {query: load_result(folder / f"{task}_{query}_0") for query in QUERIES}
        draw_task(results, panel)
    return figure


def draw_task(results, panel):
    """Standard deviation against length, a color for each kind of query."""
    for number, (query, result) in enumerate(results.items()):
        frame, color = result.to_frame(), f"C{number}"
        slope = getattr(result, f"slope_{result.tested}")[0]
        label = f"{query} query, slope {slope:+.2f}".replace("-", "−")
        # One solid, one broken: where they agree, both are seen.
        style = {"ls": ("-", "--")[number], "marker": "o", "ms": 3}
        panel.plot(frame.length, frame.std_median, color, label=label, **style)
        panel.fill_between(
            frame.length, frame.std_q25, frame.std_q75, color=color, alpha=0.15, lw=0
        )
    start = results["fixed"].std_median[0, 0]
    law = start * (frame.length / frame.length.min()) ** -0.5
    panel.plot(frame.length, law, "k:", lw=1, label="slope −1/2")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(frame.length, [f"{n}" for n in frame.length])
    panel.set_xlabel("set size N (items)")
    panel.set_ylabel(f"std over {frame.n_prompts.min()} sets,\nmedian and quartiles over features")
    panel.legend(loc="lower left")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
