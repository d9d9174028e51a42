"""Set complement with one attention: how wide it must be, and how its precision falls with length.

Question: does a single attention, trained on one and two tokens alone, name what is missing among
    any number of tokens; how wide must it be; and how fast does it lose precision?
Expected: width v - 1 suffices and v - 2 does not (Theorem 1 of arXiv 2510.08341). Where the logit
    displacement is balanced at lengths 1 and 2, the gap between absent and present tokens falls
    as 2/s, and the mass on present tokens is that of `wrong_mass` (Theorem 2).
Measured: with v = 16, KL at lengths 1 and 2 stays above 0.01 for all 16 seeds of width 14 and is
    below 0.0001 for 12 of 16 of width 15 (the other 4 are not balanced) and all of width 16. Of
    the 12, the slope of log gap over log s is -1.000, and the mass on present tokens is within
    0.043 of the prediction at every s (the last token's logit is not quite the others').
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from matplotlib import pyplot as plt

from llmprobe import balanced, load_synthetic, paper_style, train_synthetic, wrong_mass

NAME = "set_complement_theory"
SCALES = {
    "quick": {"vocab": 5, "seeds": 4, "steps": 600, "sets": 64},
    "desk": {"vocab": 16, "seeds": 16, "steps": 4000, "sets": 1024},
    "paper": {"vocab": 64, "seeds": 32, "steps": 20_000, "sets": 8192},
}
TRAINING = {"target": "exact", "train_lengths": "1..2", "learning_rate": 1e-2, "weight_decay": 0.0}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
) -> None:
    size = SCALES[scale]
    vocab = size["vocab"]
    widths = range(max(2, vocab - 4), vocab + 2)
    runs = {w: Path("runs") / NAME / scale / f"width_{w}" for w in widths}
    results = {
        w: train_synthetic(
            "set-complement", "baseline", width=w, output=runs[w], **size, **TRAINING
        )
        for w in widths
    }
    for width, result in results.items():
        result.save(output / NAME / f"width_{width}", overwrite=True)
        kl = np.sort(result.kl[0, :, :2].max(axis=1))
        print(
            f"width {width}: larger KL of lengths 1 and 2, best seed {kl[0]:.1e}, median "
            f"{np.median(kl):.1e}; {(kl < 1e-3).sum()} of {kl.size} seeds below 0.001"
        )
    enough = results[vocab - 1]
    even = np.array([is_balanced(runs[vocab - 1], seed) for seed in enough.seeds])
    log_s, log_gap = np.log(enough.lengths), np.log(enough.gap[0])
    slopes = np.polyfit(log_s, log_gap.T, 1)[0]
    print(f"width {vocab - 1}: {even.sum()} of {even.size} seeds are balanced at lengths 1 and 2")
    print(f"slope of log gap over log s: {slopes[even].min():.3f} to {slopes[even].max():.3f}")
    predicted = [wrong_mass(2 * gap[1], enough.lengths, vocab) for gap in enough.gap[0]]
    off = np.abs(enough.illegal_mass[0] - predicted)[even].max()
    print(f"mass on present tokens: largest difference from the prediction {off:.4f}")
    with paper_style():
        figure = draw(results, vocab, even)
        for ending in ("png", "pdf"):
            figure.savefig(output / f"{NAME}.{ending}", dpi=200)


def is_balanced(run, seed):
    """Whether absent tokens have one logit and present ones another, up to a tenth of the gap."""
    balances = balanced(load_synthetic(run, seed=seed))
    return all(b.absent_spread < 0.01 and b.present_spread < 0.1 for b in balances)


def draw(results, vocab, even):
    """Three panels: KL against width, gap and wrong mass against length."""
    figure, panels = plt.subplots(1, 3, figsize=(6.75, 2.9), layout="constrained")
    left, middle, right = panels
    for number, length in enumerate((1, 2)):
        values = np.array([result.kl[0, :, number] for result in results.values()])
        left.plot(list(results), values, f"C{number}.", ms=3, alpha=0.5)
        label = f"{length} token{'s' * (length > 1)}, median"
        left.plot(list(results), np.median(values, axis=1), f"C{number}", label=label)
    left.axvline(vocab - 1, color="0.5", lw=0.8, ls=":", label="v − 1")
    left.set(yscale="log", xlabel=f"width, v = {vocab}", ylabel="KL to the target (nats)")
    left.set_xticks(list(results))
    enough = results[vocab - 1]
    s = np.array(enough.lengths)
    gap, mass = enough.gap[0], enough.illegal_mass[0]
    at_2 = gap[even, 1].mean()
    for panel, values, line in (
        (middle, gap, 2 * at_2 / s),
        (right, mass, wrong_mass(2 * at_2, s, vocab)),
    ):
        if not even.all():
            panel.plot(s, values[~even].T, ".", color="0.6", ms=3)
            panel.plot([], [], ".", color="0.6", ms=3, label=f"{(~even).sum()} not balanced")
        panel.plot(s, values[even].T, "C0.", ms=3)
        panel.plot([], [], "C0.", ms=3, label=f"{even.sum()} balanced seeds")
        panel.plot(s, line, "k:", lw=1, label="2/s × gap at 2" if panel is middle else "predicted")
        panel.set_xlabel("tokens given s")
    middle.set(xscale="log", yscale="log", ylabel="gap of logits")
    right.set(ylabel="mass on present tokens")
    ticks = [n for n in (1, 2, 4, 8, 16) if n < vocab]
    for panel in (middle, right):
        panel.set_xticks(ticks, [f"{n}" for n in ticks], minor=False)
        panel.axvspan(1, 2, color="0.9", lw=0, zorder=0, label="trained")
        panel.set_title(f"width {vocab - 1}")
    middle.xaxis.minorticks_off()
    for panel in panels:  # below, where it hides nothing
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25))
    return figure


if __name__ == "__main__":
    typer.run(main)
