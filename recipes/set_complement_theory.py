"""Set complement with one attention: how wide it must be, and how its precision falls with length.

Question: does a single attention, trained on one and two tokens alone, name what is missing among
    any number of tokens; how wide must it be; and how fast does it lose precision?
Expected: width v - 1 suffices and v - 2 does not (Theorem 1 of arXiv 2510.08341). Where the logit
    displacement is balanced at lengths 1 and 2, the gap between absent and present tokens falls
    as 2/s, and the mass on present tokens is that of `wrong_mass` (Theorem 2).
Measured: MEASURED
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from matplotlib import pyplot as plt

from llmprobe import balanced, load_synthetic, train_synthetic, wrong_mass

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
        print(
            f"width {width}: KL at length 1 {result.kl[0, :, 0].mean():.1e}, "
            f"at length 2 {result.kl[0, :, 1].mean():.1e}"
        )
    enough = results[vocab - 1]
    print(enough.gap_frame().to_string(index=False))
    for seed in enough.seeds[:3]:
        for balance in balanced(load_synthetic(runs[vocab - 1], seed=seed)):
            print(f"seed {seed}: {balance}")
    figure = draw(results, vocab)
    for ending in ("png", "pdf"):
        figure.savefig(output / f"{NAME}.{ending}", dpi=200)


def draw(results, vocab):
    """Three panels: KL against width, gap and wrong mass against length."""
    plt.rcParams.update({"font.size": 8, "axes.grid": True, "grid.alpha": 0.3})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(6.75, 2.3), layout="constrained")
    for number, length in enumerate((1, 2)):
        values = np.array([result.kl[0, :, number] for result in results.values()])
        left.plot(list(results), values, f"C{number}.", ms=3, alpha=0.5)
        left.plot(list(results), values.mean(axis=1), f"C{number}", label=f"{length} token(s)")
    left.axvline(vocab - 1, color="0.5", lw=0.8, ls=":", label="v − 1")
    left.set(yscale="log", xlabel=f"width, v = {vocab}", ylabel="KL to the target (nats)")
    left.set_xticks(list(results))
    left.legend(fontsize=7)
    enough = results[vocab - 1]
    s = np.array(enough.lengths)
    gap, mass = enough.gap[0], enough.illegal_mass[0]
    at_2 = gap[:, 1].mean()
    middle.loglog(s, gap.T, "C0.", ms=3, alpha=0.5)
    middle.loglog(s, 2 * at_2 / s, "k:", lw=1, label="gap at 2, times 2/s")
    middle.set(xlabel="tokens given s", ylabel="gap of logits")
    right.plot(s, mass.T, "C0.", ms=3, alpha=0.5)
    right.plot(s, wrong_mass(2 * at_2, s, vocab), "k:", lw=1, label="predicted")
    right.set(xlabel="tokens given s", ylabel="mass on present tokens")
    ticks = [n for n in (1, 2, 4, 8, 16) if n < vocab]
    for panel in (middle, right):
        panel.set_xticks(ticks, [f"{n}" for n in ticks], minor=False)
        panel.minorticks_off()
        panel.axvspan(1, 2, color="0.9", lw=0, zorder=0, label="trained")
        panel.legend(fontsize=7)
    middle.set_title(f"{len(enough.seeds)} seeds of width {vocab - 1}", fontsize=8)
    return figure


if __name__ == "__main__":
    typer.run(main)
