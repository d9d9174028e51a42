"""Which systems answer inputs longer than those of their training?

Question: over the runs of the recipes for related systems, what is the longest length that each
    system solves (90 % right), over its longest training length?
Expected: each paper reports that its own system goes furthest; none compares them on one task with
    several seeds.
Measured: over sets up to 16 times (entmax, differential); sums 3 times with coupled positions by
    their distance and a scaled softmax, the parity of 4 bits 3 times; all else at most 1.5 times,
    most no further than training. See figures/README.md.

Related systems train with `train_runs`. With a scale all run first; without, saved ones are drawn.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import typer
from matplotlib.axes import Axes

from llmprobe import LLMProbeError, load_result, train_synthetic

NAME = "leaderboard"
SYSTEMS = ("role_of_sparsity", "not_robustly", "attention_bias_calibration", "xpos")
SYSTEMS += ("length_is_a_domain", "t2r", "reguformer", "differential", "normalized")
# Quick takes seconds and decides nothing; settings of a run take precedence over those of desk.
SMALL = {"seeds": 2, "steps": 20, "sets": 16, "batch": 8, "width": 16}
SCALES: dict[str, dict[str, Any]] = {
    "quick": SMALL,
    "desk": {"seeds": 4, "sets": 256},
    "paper": {"preset": "paper", "seeds": 16},
}


def train_runs(
    name: str, runs: Mapping[str, Mapping[str, Any]], *, scale: str, only: str | None, output: Path
) -> None:
    """Train the runs of a recipe, print what came, save results and figures."""
    if only is not None and only not in runs:
        raise typer.BadParameter(f"only: got {only!r}, accepted: {', '.join(runs)}")
    for key in [only] if only else runs:
        ours = dict(runs[key])
        if scale != "desk":
            ours = {k: v for k, v in ours.items() if k not in ("seeds", "steps")}
        place = Path("runs") / name / key / scale
        result = train_synthetic(output=place, **(SCALES[scale] | ours))
        if os.environ.get("RANK", "0") != "0":
            continue  # one of several processes shows the result
        print(result.headline(), *result.warnings, sep="\n")
        print(result.summary_frame().round(3).to_string(index=False))
        print(result.reading())
        result.save(output / f"{name}_{key}", overwrite=True)
        for ending in ("png", "pdf"):
            result.save_figure(output / f"{name}_{key}.{ending}")


def longest_solved(folder: Path) -> pd.DataFrame:
    """A row for each variant and seed of a saved run: the longest length solved over training's."""
    result = load_result(folder)
    pairs = pd.MultiIndex.from_product([result.variants, result.seeds], names=["variant", "seed"])
    best = pd.Series(result.longest_solved.ravel(), index=pairs, name="solved").reset_index()
    return best.assign(
        system=next(s for s in SYSTEMS if folder.name.startswith(s)), run=folder.name
    )


def draw(table: pd.DataFrame, ax: Axes) -> None:
    """A row for each variant of a run under the name of its system; a dot for each seed."""
    rows: list[str] = []
    for color, (system, runs) in enumerate(table.groupby("system", sort=False)):
        rows.append(system)
        for (run, variant), own in runs.groupby(["run", "variant"], sort=False):
            heights = len(rows) + np.linspace(-0.25, 0.25, len(own))
            ax.plot(own.solved, heights, "o", color=f"C{color}", ms=4, mew=0, clip_on=False)
            rows.append(f"{run.removeprefix(system)[1:]}: {variant}")
    ax.set_yticks(range(len(rows)), rows, fontsize=8)
    for label in ax.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in SYSTEMS else "normal")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.axvline(1, color="0.5", linewidth=1, linestyle="--", zorder=0)
    ax.grid(axis="y", color="0.93", linewidth=0.5)
    ax.set_xscale("symlog", base=2, linthresh=0.5)
    most = 1.4 * max(1, np.nanmax(table.solved))
    ax.set_xticks([0, *(2.0**power for power in range(-1, 11) if 2**power <= most)])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    ax.set(xlabel="longest length solved over the longest of training", xlim=(-0.1, most))


def main(
    scale: Annotated[
        Literal["quick", "desk", "paper"] | None, typer.Option(help="Train all systems first.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of results and figures.")] = Path("figures"),
) -> None:
    if scale is not None:
        for system in SYSTEMS:
            import_module(system).main(scale=scale, only=None, output=output)
    found = [path.parent for s in SYSTEMS for path in sorted(output.glob(f"{s}_*/result.json"))]
    if not found:
        raise SystemExit(f"{NAME}: {output} has no results; run the recipes {', '.join(SYSTEMS)}")
    table = pd.concat([longest_solved(folder) for folder in found], ignore_index=True)
    means = table.groupby(["run", "variant"], sort=False).solved.agg(["mean", "min", "max", "size"])
    print(means.round(2).to_string())
    n_rows = len(means) + table.system.nunique()
    figure, ax = plt.subplots(figsize=(7, 0.18 * n_rows + 0.9), layout="constrained")
    draw(table, ax)
    for ending in ("png", "pdf"):
        figure.savefig(output / f"{NAME}.{ending}", dpi=150)


if __name__ == "__main__":
    try:
        typer.run(main)
    except LLMProbeError as error:
        raise SystemExit(f"{NAME}: {error}") from error
