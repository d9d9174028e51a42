"""Set complement with one attention: how wide it must be, and how its precision falls with length.

Question: does a single attention, trained on one and two tokens alone, name what is missing among
    any number of tokens; how wide must it be; and how fast does it lose precision?
Expected: width v - 1 suffices and v - 2 does not (Theorem 1 of arXiv 2510.08341). Where the logit
    displacement is balanced at lengths 1 and 2, the gap between absent and present tokens falls
    as 2/s, and the mass on present tokens is that of `wrong_mass` (Theorem 2).
Measured: with v = 16, the larger of the KLs at lengths 1 and 2 stays above 0.01 for all 16 seeds of
    width 14 and is below 0.0001 for 12 of 16 of width 15 and all of width 16; the 12 are those that
    `balanced` finds balanced. Their slope of log gap over log s is -1.000, and their mass on
    present tokens is within 0.043 of the prediction at every s (the last token's logit is not quite
    the others').
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from matplotlib import pyplot as plt

from llmprobe import LLMProbeError, load_result, paper_style, train_synthetic, wrong_mass

NAME = "set_complement_theory"
SCALES = {
    "quick": {"vocab": 5, "seeds": 4, "steps": 600, "sets": 64},
    "desk": {"vocab": 16, "seeds": 16, "steps": 4000, "sets": 1024},
    "paper": {"vocab": 64, "seeds": 32, "steps": 20_000, "sets": 8192},
}
LOW = 0.001  # nats; seeds below it are those that `balanced` finds balanced
TRAINING = {"target": "exact", "train_lengths": "1..2", "learning_rate": 1e-2, "weight_decay": 0.0}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
    redraw: Annotated[bool, typer.Option("--redraw", help="From the saved results.")] = False,
) -> None:
    size = SCALES[scale]
    vocab = size["vocab"]
    widths = range(max(2, vocab - 4), vocab + 2)
    folders = {width: output / NAME / f"width_{width}" for width in widths}
    for width, folder in folders.items() if not redraw else ():
        run = Path("runs") / NAME / scale / folder.name
        options = {"width": width, "output": run} | size | TRAINING
        train_synthetic("set-complement", "baseline", **options).save(folder, overwrite=True)
    results = {width: load_result(folder) for width, folder in folders.items()}
    for width, result in results.items():
        kl = larger_kl(result)
        print(
            f"width {width}: larger KL of lengths 1 and 2, best seed {kl.min():.1e}, median "
            f"{np.median(kl):.1e}; {(kl < LOW).sum()} of {kl.size} seeds below {LOW}"
        )
    enough = results[vocab - 1]
    even = larger_kl(enough) < LOW
    slopes = np.polyfit(np.log(enough.lengths), np.log(enough.gap[0]).T, 1)[0]
    print(f"width {vocab - 1}, the {even.sum()} of {even.size} seeds below {LOW}:")
    print(f"slope of log gap over log s: {slopes[even].min():.3f} to {slopes[even].max():.3f}")
    predicted = [wrong_mass(2 * gap[1], enough.lengths, vocab=vocab) for gap in enough.gap[0]]
    off = np.abs(enough.illegal_mass[0] - predicted)[even].max()
    print(f"mass on present tokens: largest difference from the prediction {off:.4f}")
    with paper_style():
        figure = draw(results, vocab, even)
        for ending in ("png", "pdf"):
            figure.savefig(output / f"{NAME}.{ending}", dpi=200)


def larger_kl(result):
    """The larger of the KLs at lengths 1 and 2, for each seed."""
    return result.kl[0, :, :2].max(axis=1)


def draw(results, vocab, even):
    """Three panels: KL against width, gap and wrong mass against length."""
    figure, panels = plt.subplots(1, 3, figsize=(6.75, 2.9), layout="constrained")
    left, middle, right = panels
    for number, length in enumerate((1, 2)):
        values = np.array([result.kl[0, :, number] for result in results.values()])
        left.plot(list(results), values, f"C{number}.", ms=3, alpha=0.5)
        label = f"{length} token{'s' * (length > 1)}, median"
        left.plot(list(results), np.median(values, axis=1), f"C{number}", label=label)
    left.plot([], [], ".", color="0.6", ms=3, label=f"one of {values.shape[1]} seeds a width")
    left.axvline(vocab - 1, color="0.5", lw=0.8, ls=":", label="v − 1")
    left.set(yscale="log", xlabel=f"width, v = {vocab}", ylabel="KL to the target (nats)")
    left.set_xticks(list(results))
    enough = results[vocab - 1]
    s = np.array(enough.lengths)
    gap, mass = enough.gap[0], enough.illegal_mass[0]
    at_2 = gap[even, 1].mean()
    for panel, values, line in (
        (middle, gap, 2 * at_2 / s),
        (right, mass, wrong_mass(2 * at_2, s, vocab=vocab)),
    ):
        if not even.all():
            panel.plot(s, values[~even].T, ".", color="0.6", ms=3)
            panel.plot([], [], ".", color="0.6", ms=3, label=f"{(~even).sum()} other seeds")
        panel.plot(s, values[even].T, "C0.", ms=3)
        panel.plot([], [], "C0.", ms=3, label=f"{even.sum()} seeds, KL < {LOW}")
        panel.plot(s, line, "k:", lw=1, label="2/s × gap at 2" if panel is middle else "predicted")
        panel.set_xlabel("tokens given s")
    middle.set(xscale="log", yscale="log", ylabel="gap of logits")
    right.set(ylabel="mass on present tokens")
    ticks = [*(n for n in (1, 2, 4, 8, 16, 32) if 3 * n < 2 * vocab), vocab - 1]
    for panel in (middle, right):
        panel.set_xticks(ticks, [f"{n}" for n in ticks], minor=False)
        panel.axvspan(1, 2, color="0.9", lw=0, zorder=0, label="trained")
        panel.set_title(f"width {vocab - 1}")
    middle.xaxis.minorticks_off()
    for panel in panels:  # below, where it hides nothing
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25))
    return figure


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
