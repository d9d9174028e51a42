"""What the slopes of a variance result say, in words, by its labels and its null model."""

from typing import Any

import numpy as np

from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS, MARGIN

LABELS = {
    "dispersing": "slope within {margin} of uniform attention",
    "falling": "slope below 0",
    "flat": "slope within {margin} of 0",
    "rising": "slope above 0",
    "undecided": "none of these",
}
_UNTRAINED = ("dispersing", "falling", "flat")
"""What heads do before they have learned anything: the first layer's disperse, and in deep layers,
where tokens have become alike, they are flat."""


def read_slopes(result: Any) -> str:
    """What the slopes of a variance result say."""
    return minus(_read(result))


def _read(result: Any) -> str:
    slope, low, high = (getattr(result, f"slope_{result.tested}{e}") for e in ENDS)
    span = f"from {min(result.lengths)} to {max(result.lengths)} tokens"
    if not np.isfinite(slope).any():
        return f"No slope could be fitted {span}."
    if not np.isfinite(low).any():
        return f"The slopes {span} have no confidence interval, so they show no trend."
    what = {
        "total": "total standard deviation over prompts",
        "within": "standard deviation over prompts with the same query",
        "features": "features' standard deviation over prompts",
    }[result.tested]
    if len(slope) == 1:
        found = (
            f"The {what} changes as N^{slope[0]:.2f} (95 % CI {low[0]:+.2f} to {high[0]:+.2f}) "
            f"{span}"
        )
        expected = f"uniform attention would give N^{result.slope_uniform[0]:.2f}"
        known = np.isfinite(result.slope_uniform[0])
        told = f": {result.labels()[0]}; {expected}." if known else "."
        return found + told + _against_null(result)
    series = "heads" if result.at == "heads" else "layers"
    ends = f"Slopes range from {np.nanmin(slope):+.2f} to {np.nanmax(slope):+.2f}."
    if result.tested == "features":
        falls = int((high < 0).sum())
        return f"{falls} of {len(slope)} {series} lose variance {span} (95 % CI below 0). {ends}"
    more = _bends(result) + _against_null(result)
    tests = f"tests at 5 % with Holm's correction over {series}"
    return (
        f"Of {len(slope)} {series}, {_counts(result)} {span}, by the {what} ({tests}). {ends}{more}"
    )


def _counts(result: Any) -> str:
    labels, uniform = result.labels(), result.slope_uniform[np.isfinite(result.slope_uniform)]
    texts = {name: text.format(margin=MARGIN) for name, text in LABELS.items()}
    if len(uniform):
        texts["dispersing"] += f", {np.median(uniform):+.2f}"
    counts = [
        f"{n} {'is' if n == 1 else 'are'} {name} ({text})"
        for name, text in texts.items()
        if (n := (labels == name).sum())
    ]
    return " and ".join([", ".join(counts[:-1]), counts[-1]] if counts[1:] else counts)


def _bends(result: Any) -> str:
    bent = holm(result.p_curvature)
    slows = int((bent & (result.curvature > 0)).sum())
    grows = int((bent & (result.curvature < 0)).sum())
    ways = [f"{way} with length in {n}" for way, n in (("rises", slows), ("falls", grows)) if n]
    if not ways:
        return ""
    return f" A straight line does not fit {slows + grows}: the slope {' and '.join(ways)}."


def _against_null(result: Any) -> str:
    """Which series a model of which nothing is learned does not explain."""
    if result.null is None:
        note = (
            f" Heads of an untrained model are {', '.join(_UNTRAINED[:-1])} or {_UNTRAINED[-1]} "
            'too, so this alone shows nothing learned: compare with null="untrained".'
        )
        return note if np.isin(result.labels(), _UNTRAINED).any() else ""
    differs, n = int(holm(result.p_null).sum()), len(result.p_null)
    slope = f"{'median slope' if n > 1 else 'slope'} {np.nanmedian(result.slope_null):+.2f}"
    null = f"the {result.null} model ({slope}) on the same prompts"
    if n == 1:
        so = "differs from" if differs else "shows nothing learned: it does not differ from"
        return f" It {so} {null} (5 %)."
    others = "; the others show" if differs else ": they show"
    rest = f"{others} nothing learned" if differs < n else ""
    return f" {differs or 'None'} of {n} differ from {null} (5 %, Holm's correction){rest}."
