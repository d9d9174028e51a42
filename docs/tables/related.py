"""The table of related systems in figures/README.md: how far beyond its training each one goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cells import compared, interval, rows, saved, table

from llmprobe.results.solved import AT_CHANCE

SYSTEMS = {
    "role_of_sparsity": "Role of Sparsity (2502.16792): coupled positions carry addition",
    "not_robustly": "Not Robustly (2402.09371): FIRE over randomized positions carries addition",
    "attention_bias_calibration": "ABC (2310.11984): a calibrated bias carries simple tasks",
    "xpos": "xPos (2212.10554): it extrapolates better than rotary positions",
    "length_is_a_domain": "Length is a Domain (2109.07276): other lengths fail on both sides",
    "t2r": "T2R (2103.13076): a trained softmax can be swapped for linear attention",
    "reguformer": "Reguformer (2212.14246): the strongest items suffice, random ones do not",
    "differential": "Differential (2410.05258): two softmaxes retrieve better",
    "normalized": "Normalized (2005.09561): no softmax, no loss of variance",
}
"""The claim of each paper that its runs are held against."""


@table
def related(root: Path) -> str:
    head = "claim|run, task: training, seeds, steps|variant| longest solved| at| difference|verdict"
    return rows(head, _lines(root / "figures"))


def _lines(figures: Path) -> Iterator[str]:
    for system, claim in SYSTEMS.items():
        for path in sorted(figures.glob(f"{system}_*/result.json")):
            result = saved(path.parent)
            shown = _shown(result)
            shortest, longest = result.train_lengths
            name = path.parent.name.removeprefix(f"{system}_")
            run = f"{name}, `{result.task}`: {shortest} to {longest}, {len(result.seeds)}, "
            run += f"{result.steps:,}"
            for variant, solved in zip(result.variants, result.longest_solved, strict=True):
                reach = f"×{solved.mean():.2g} [{solved.min():.2g}, {solved.max():.2g}]"
                tail = f"{100 * _first_mean(result, shown):.0f} % | "
                if variant != result.variants[0]:
                    row = compared(result, variant).set_index("length").loc[shown]
                    difference = interval(row.difference, row.low, row.high)
                    tail = f"{'' if row.verdict == AT_CHANCE else difference} | {row.verdict}"
                yield f"{claim} | {run} | `{variant}` | {reach} | {shown:,} | {tail}"
                claim = run = ""


def _shown(result: Any) -> int:
    """The length at which variants are compared: 1,024 items, or twice the training's."""
    if result.kind == "synthetic":
        return 1024
    return int(
        min(n for n in (*result.lengths, result.lengths[-1]) if n >= 2 * result.train_lengths[1])
    )


def _first_mean(result: Any, length: int) -> float:
    """Of the first variant."""
    frame = result.summary_frame()
    found = frame[(frame.variant == result.variants[0]) & (frame.length == length)]
    return float(found["mean"].iloc[0])
