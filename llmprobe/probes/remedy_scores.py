"""From what prompts gave untreated and treated to differences, tests and slopes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import (
    Estimate,
    detectable,
    estimate,
    fit_decay,
    paired_p,
    ratio_estimate,
)
from llmprobe.base.trends import ENDS
from llmprobe.probes.summaries import by_series, without_each
from llmprobe.probes.tallies import Evidence
from llmprobe.probes.treatments import REMEDY, SHUFFLED, Treatment

UNTREATED = "untreated"
_NOTHING = Estimate(np.nan, np.nan, np.nan, np.nan, 0)
_SLOPES = tuple(f"slope{what}{end}" for what in ("", "_change") for end in ENDS)


def with_slopes(every: Sequence[Treatment]) -> list[Treatment]:
    """Of each remedy the treatment whose dose is nearest to 1: its slopes are measured."""
    own = [treatment for treatment in every if treatment.arm == REMEDY]
    names = dict.fromkeys(treatment.remedy for treatment in own)
    return [
        min((t for t in own if t.remedy == name), key=lambda t: abs(t.dose - 1)) for name in names
    ]


def compare_treatments(
    values: NDArray[np.float64],
    every: Sequence[Treatment],
    *,
    per: NDArray[np.float64] | None = None,
) -> dict[str, NDArray[Any]]:
    """Columns of a measure (prompts, lengths, 1 + treatments), the first of which is untreated.

    `per` (prompts, lengths): values are sums over so many tokens, and means are of all tokens.
    """
    n_lengths = values.shape[1]

    def mean(x: NDArray[np.float64], at: int) -> Any:
        return estimate(x) if per is None else ratio_estimate(x, per[:, at])

    before = [mean(values[:, at, 0], at) for at in range(n_lengths)]
    columns: dict[str, NDArray[Any]] = {
        "n_prompts": np.array([np.isfinite(values[:, at, 0]).sum() for at in range(n_lengths)]),
        "baseline": np.array([x.mean for x in before]),
        "baseline_low": np.array([x.low for x in before]),
        "baseline_high": np.array([x.high for x in before]),
    }
    sham = {(t.remedy, t.dose): n for n, t in enumerate(every, 1) if t.arm == SHUFFLED}
    rows = []
    for number, treatment in enumerate(every, start=1):
        for at in range(n_lengths):
            x, versus = values[:, at], _NOTHING
            if treatment.arm == REMEDY:
                against = sham[treatment.remedy, treatment.dose]
                versus = mean(x[:, number] - x[:, against], at)
            change = mean(x[:, number] - x[:, 0], at)
            rows.append(
                {
                    "change": change.mean,
                    "change_low": change.low,
                    "change_high": change.high,
                    "p": paired_p(change),
                    "detectable": detectable(change),
                    "versus_sham": versus.mean,
                    "versus_sham_low": versus.low,
                    "versus_sham_high": versus.high,
                }
            )
    shape = (len(every), n_lengths)
    return columns | {
        name: np.array([row[name] for row in rows]).reshape(shape) for name in rows[0]
    }


def compare_slopes(evidence: Evidence, every: Sequence[Treatment]) -> dict[str, NDArray[Any]]:
    """Slopes of heads' total standard deviation, untreated and treated, and their differences."""
    lengths, tallies = evidence.lengths, list(evidence.tallies.values())
    numbers = [n for n in tallies[0].numbers if (n, UNTREATED) in tallies[0].groups]
    if not numbers:
        none = dict.fromkeys(("layer", "head", "slope_of"), np.zeros(0, np.int64))
        return none | dict.fromkeys(_SLOPES, np.zeros((0, 0)))
    measured = with_slopes(every)
    names = [UNTREATED, *(treatment.remedy for treatment in measured)]
    std = {name: _total_std(tallies, numbers, name) for name in names}
    sizes = list(tallies[0].groups[numbers[0], UNTREATED].sizes().values())
    ends = ("slope", "slope_low", "slope_high")
    rows: dict[str, list[NDArray[Any]]] = {}
    whole, without = std[UNTREATED]
    for name in names:
        treated, treated_without = std[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio, ratio_without = treated / whole, treated_without / without
        pairs = {"": (treated, treated_without), "_change": (ratio, ratio_without)}
        for what, (value, replicates) in pairs.items():
            fit = None
            if len(lengths) > 1:
                fit = fit_decay(lengths, value, without=replicates, sizes=sizes)
            for end in ends:
                column = np.full(len(value), np.nan) if fit is None else getattr(fit, end)
                rows.setdefault(end.replace("slope", f"slope{what}"), []).append(column)
    heads = [
        (layer.layer, head)
        for layer in evidence.layers
        if layer.layer in numbers
        for head in range(layer.n_heads)
    ]
    return {
        "layer": np.array([layer for layer, _ in heads]),
        "head": np.array([head for _, head in heads]),
        "slope_of": np.array([-1, *(every.index(treatment) for treatment in measured)]),
        **{name: np.stack(columns) for name, columns in rows.items()},
    }


def _total_std(
    tallies: Sequence[Any], numbers: Sequence[int], name: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of each head by length, and the same without each group: ([groups,] heads, lengths)."""

    def total(summaries: list[Any]) -> NDArray[Any]:
        return np.sqrt(by_series(summaries, "variance", heads=True).sum(axis=-1))

    whole, without = [], []
    for number in numbers:
        outputs = [tally.groups[number, name] for tally in tallies]
        whole.append(total([groups.total().summary() for groups in outputs]))
        without.append([total(one) for one in without_each(outputs, sorted(outputs[0].parts))])
    return np.concatenate(whole), np.concatenate(without, axis=1)
