"""Where attention looks, by length, and the factors of the variance that this makes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import divide
from llmprobe.results.base import check_shape, missing_as_nan
from llmprobe.results.series import Array, SeriesResult
from llmprobe.results.tables import MAX_ROWS, signed_cells, span_cells
from llmprobe.results.views import HeadMap, Lines, View

if TYPE_CHECKING:
    import pandas as pd


FACTORS = ("dispersion", "value_variance", "coherence")
"""Columns whose product is `measured_variance`."""
TERMS = {
    "measured_variance": "slope_total",
    "dispersion": "slope_dispersion",
    "value_variance": "slope_values",
    "coherence": "slope_coherence",
}
"""The slope of each of them; the first is the sum of the others."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionResult(SeriesResult, kind="attention"):
    """Where the last query of a prompt looks, and how that changes with the prompt's length."""

    plots: ClassVar[dict[str, str]] = {
        "dispersion": "effective tokens against length",
        "weights": "the 16 largest weights of 32 prompts, by length",
        "rows": "entropy, logit spread and Λ of rows against length",
        "terms": "slopes of dispersion, values and coherence, stacked to each head's slope",
        "map": "heads by layer, colored by the term that decides their slope",
        "prediction": "measured variance against the values' variance × E[Σa²]",
    }

    views: ClassVar[tuple[View, ...]] = (
        HeadMap(
            title="Which heads disperse",
            value="slope_dispersion",
            low="slope_dispersion_low",
            high="slope_dispersion_high",
            axis="what dispersion adds to the slope of the std",
            frame="head_frame",
        ),
        Lines(
            title="Effective tokens",
            y="effective",
            axis="1/Σa², mean over prompts",
            log_y=True,
        ),
        Lines(
            title="Weight on the first token",
            y="first",
            axis="mean over prompts",
            percent=True,
        ),
        Lines(
            title="Variance: dispersion",
            y="dispersion",
            low="dispersion_low",
            high="dispersion_high",
            axis="E[Σa²], with 95 % CI",
            log_y=True,
        ),
        Lines(
            title="Variance: values",
            y="value_variance",
            low="value_variance_low",
            high="value_variance_high",
            axis="of the attended values, with 95 % CI",
            log_y=True,
        ),
        Lines(
            title="Variance: coherence",
            y="coherence",
            low="coherence_low",
            high="coherence_high",
            axis="tokens that agree, with 95 % CI",
            log_y=True,
        ),
    )
    kept: ClassVar[str] = "top"
    joins: ClassVar[str] = "llmprobe.probes.attention"

    entropy: Array
    """Of the attention row in nats, mean over prompts; (series, lengths), like the next."""
    entropy_std: Array
    """Its standard deviation over prompts."""
    effective: Array
    """Effective tokens 1/Σa², mean over prompts."""
    effective_std: Array
    first: Array
    """Weight on the prompt's first token, mean over prompts."""
    first_std: Array
    mass: Array
    """Σa, mean over prompts: one unless a learned sink takes a share."""
    measured_variance: Array
    """Variance over prompts of the head's output, mean over its features."""
    predicted_variance: Array
    """The values' variance over tokens times E[Σa²]: what it would be if all tokens varied alike
    and independently of the weights. Tokens that cannot vary count too, so heads with a sink have
    far less; `dispersion`, `value_variance` and `coherence` add up."""
    top: NDArray[np.float32]
    """Largest weights: (kept series, lengths, prompts, rank)."""
    squares: Array = missing_as_nan("layer_type", "lengths")
    """Σa², mean over prompts."""
    squares_std: Array = missing_as_nan("layer_type", "lengths")
    squares_rest: Array = missing_as_nan("layer_type", "lengths")
    """Σa² of the row without the prompt's first token, the rest scaled to sum to one."""
    squares_rest_std: Array = missing_as_nan("layer_type", "lengths")
    entropy_share: Array = missing_as_nan("layer_type", "lengths")
    """Entropy / ln n, of n keys that the query sees: one for uniform attention."""
    entropy_share_std: Array = missing_as_nan("layer_type", "lengths")
    entropy_rest: Array = missing_as_nan("layer_type", "lengths")
    """Entropy without the first token, the rest scaled to sum to one."""
    entropy_rest_std: Array = missing_as_nan("layer_type", "lengths")
    entropy_share_rest: Array = missing_as_nan("layer_type", "lengths")
    """The same over the logarithm of the keys that are left."""
    entropy_share_rest_std: Array = missing_as_nan("layer_type", "lengths")
    spread: Array = missing_as_nan("layer_type", "lengths")
    """Largest minus smallest logit of a row, mean over prompts."""
    spread_std: Array = missing_as_nan("layer_type", "lengths")
    log_lambda: Array = missing_as_nan("layer_type", "lengths")
    """ln Λ, mean over prompts, so exp of it is a geometric mean: Λ itself has none, as near ties
    make it as large as you like. Λ = max over k ≥ 2 of ln k / Δ_k, with Δ_k the gap of the k-th
    largest logit from the largest; Λ > 1 means dispersed (arXiv 2605.12697)."""
    log_lambda_std: Array = missing_as_nan("layer_type", "lengths")
    sink_rate: Array = missing_as_nan("layer_type", "lengths")
    """Share of prompts whose weight on the first token is above 0.3."""
    n_keys: Array = missing_as_nan("layer_type", "lengths")
    """Keys that the query sees: the length, or fewer behind a window."""
    lambda_exponent: Array = missing_as_nan("layer_type")
    """Slope of ln Λ over ln ln n, the power of ln n that Λ grows with; (series,)."""
    lambda_exponent_low: Array = missing_as_nan("layer_type")
    lambda_exponent_high: Array = missing_as_nan("layer_type")
    """Its 95 % interval, by a jackknife over groups of prompts."""
    dispersion: Array = missing_as_nan("layer_type", "lengths")
    """E[Σa²]. Here and in the next, mass that is missing from a row is that of a token whose value
    is zero, a learned sink."""
    dispersion_low: Array = missing_as_nan("layer_type", "lengths")
    dispersion_high: Array = missing_as_nan("layer_type", "lengths")
    """The 95 % interval, by a jackknife over groups of prompts, like the next."""
    value_variance: Array = missing_as_nan("layer_type", "lengths")
    """E[Σa²|v − m|²] / E[Σa²], m the mean output over prompts, mean over features."""
    value_variance_low: Array = missing_as_nan("layer_type", "lengths")
    value_variance_high: Array = missing_as_nan("layer_type", "lengths")
    coherence: Array = missing_as_nan("layer_type", "lengths")
    """Measured variance / E[Σa²|v − m|²]: more than one if tokens agree, less if they cancel or
    cannot vary."""
    coherence_low: Array = missing_as_nan("layer_type", "lengths")
    coherence_high: Array = missing_as_nan("layer_type", "lengths")
    dispersion_first: Array = missing_as_nan("layer_type", "lengths")
    """Share of the first token in E[Σa²]; then of the query's own and of the missing mass."""
    dispersion_query: Array = missing_as_nan("layer_type", "lengths")
    dispersion_missing: Array = missing_as_nan("layer_type", "lengths")
    values_first: Array = missing_as_nan("layer_type", "lengths")
    """Share of the first token in E[Σa²|v − m|²]; then of the query's own and the missing mass."""
    values_query: Array = missing_as_nan("layer_type", "lengths")
    values_missing: Array = missing_as_nan("layer_type", "lengths")
    slope_total: Array = missing_as_nan("layer_type")
    """Slope of the root of the measured variance over log N; (series,), like the next."""
    slope_total_low: Array = missing_as_nan("layer_type")
    slope_total_high: Array = missing_as_nan("layer_type")
    slope_dispersion: Array = missing_as_nan("layer_type")
    """Slopes of the roots of the factors; the three add up to the total."""
    slope_dispersion_low: Array = missing_as_nan("layer_type")
    slope_dispersion_high: Array = missing_as_nan("layer_type")
    slope_values: Array = missing_as_nan("layer_type")
    slope_values_low: Array = missing_as_nan("layer_type")
    slope_values_high: Array = missing_as_nan("layer_type")
    slope_coherence: Array = missing_as_nan("layer_type")
    slope_coherence_low: Array = missing_as_nan("layer_type")
    slope_coherence_high: Array = missing_as_nan("layer_type")

    by_length: ClassVar[tuple[str, ...]] = (
        "entropy",
        "entropy_std",
        "effective",
        "effective_std",
        "first",
        "first_std",
        "mass",
        "measured_variance",
        "predicted_variance",
        *("squares", "squares_std", "squares_rest", "squares_rest_std"),
        *("entropy_share", "entropy_share_std", "entropy_rest", "entropy_rest_std"),
        *("entropy_share_rest", "entropy_share_rest_std", "spread", "spread_std"),
        *("log_lambda", "log_lambda_std", "sink_rate", "n_keys"),
        *(f"{name}{end}" for name in FACTORS for end in ("", "_low", "_high")),
        *("dispersion_first", "dispersion_query", "dispersion_missing"),
        *("values_first", "values_query", "values_missing"),
    )
    by_series: ClassVar[tuple[str, ...]] = tuple(
        f"{name}{end}"
        for name in (*TERMS.values(), "lambda_exponent")
        for end in ("", "_low", "_high")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.by_series:
            check_shape(name, getattr(self, name), (len(self.layer_type),))
        kept = self.top.shape
        check_shape("top", self.top, (*kept[:1], len(self.lengths), *kept[2:4]))

    def head_frame(self) -> "pd.DataFrame":
        """A row for each layer and head: its slope, the terms of it, what decides; Λ's exponent."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        columns |= {name: getattr(self, name) for name in self.by_series}
        return pd.DataFrame(columns | {"decides": self.decides()})

    def decides(self) -> list[str]:
        """For each head the largest of the terms that have the sign of its slope.

        `dispersion`, `values` or `coherence`; empty where the 95 % CI of the slope includes 0, or
        where there are no terms.
        """
        names = [term.removeprefix("slope_") for term in TERMS.values()][1:]
        terms = np.stack([getattr(self, f"slope_{name}") for name in names])
        along = terms * np.sign(self.slope_total)
        clear = (self.slope_total_low > 0) | (self.slope_total_high < 0)
        known = clear & np.isfinite(along).all(axis=0)
        largest = np.where(known, along, 0).argmax(axis=0)
        return [names[i] if k else "" for i, k in zip(largest, known, strict=True)]

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {"heads": self._records(self.head_frame())}

    def remarks(self) -> list[str]:
        return [*self._sinks(), *self._dispersed(), *self._adding_up()]

    def _sinks(self) -> list[str]:
        known = np.isfinite(self.sink_rate)
        if not known.any():
            return []
        rates = divide(np.where(known, self.sink_rate, 0).sum(axis=0), known.sum(axis=0))
        shown = ", ".join(
            f"{length}: {rate:.0%}" for length, rate in zip(self.lengths, rates, strict=True)
        )
        return [f"sink rate (rows with more than 0.3 on the first token), by length: {shown}"]

    def _dispersed(self) -> list[str]:
        known = self.log_lambda[np.isfinite(self.log_lambda[:, -1]), -1]
        if not len(known):
            return []
        above = f"{(known > 0).sum()} of {len(known)} heads have Λ > 1 at {self.lengths[-1]} tokens"
        rises = int((self.lambda_exponent_low > 0).sum())
        return [
            f"{above}: at the model's temperature their rows are dispersed. Λ grows with the "
            f"length in {rises} (95 % CI of the exponent above 0)."
        ]

    def _adding_up(self) -> list[str]:
        known = np.isfinite(self.slope_dispersion_high)
        if not known.any():
            return []
        spreads = known & (self.slope_dispersion_high < 0)
        keeps = int((spreads & ~(self.slope_total_high < 0)).sum())
        decided = [name for name in self.decides() if name]
        named = ("dispersion", "values", "coherence")
        counts = ", ".join(f"{name} in {decided.count(name)}" for name in named)
        return [
            f"{spreads.sum()} of {known.sum()} heads disperse (95 % CI of the dispersion's slope "
            f"below 0). In {keeps} of these the variance does not clearly fall (CI of the slope "
            "reaches 0): values or coherence make up for it. "
            f"{len(decided)} heads have a slope that differs from 0; what decides it: {counts}."
        ]

    def table(
        self, *, width: int | None = None, sort: str | None = None, rows: int | None = MAX_ROWS
    ) -> Any:
        from rich.console import Group

        first = self._rows_table(width, sort=sort, rows=rows)
        if not self._terms_known().any():
            return first
        return Group(first, self._terms_table(width, sort=sort, rows=rows))

    def ranking(self) -> Array | None:
        return self.slope_total if self._terms_known().any() else None

    def _terms_known(self) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.slope_coherence))

    def _terms_table(self, width: int | None, **order: Any) -> Any:
        ends = {
            "slope": signed_cells(self.slope_total),
            "95 % CI": span_cells(self.slope_total_low, self.slope_total_high),
            "= disp.": signed_cells(self.slope_dispersion),
            "+ values": signed_cells(self.slope_values),
            "+ coh.": signed_cells(self.slope_coherence),
            "decides": self.decides(),
        }
        title = "standard deviation of a head's output over prompts, and the terms of its slope"
        values = np.sqrt(self.measured_variance)
        table = self._table(title, values, ends=ends, width=width, **order)
        return _explained(
            table,
            "slope = dispersion + values + coherence; decides: the largest term, where the CI of "
            "the slope does not include 0",
        )

    def _rows_table(self, width: int | None, **order: Any) -> Any:
        columns = {
            "H / ln n": self.entropy_share[:, -1],
            "no first": self.entropy_share_rest[:, -1],
            "spread": self.spread[:, -1],
            "Λ": np.exp(self.log_lambda[:, -1]),
            "first": self.first[:, -1],
        }
        ends = {
            name: [f"{value:.2f}" for value in values]
            for name, values in columns.items()
            if np.isfinite(values).any()  # older folders lack some
        }
        title = "effective tokens 1/Σa², mean over prompts"
        table = self._table(title, self.effective, ends=ends, width=width, **order)
        words = "; ".join(_COLUMNS[name] for name in ends)
        return _explained(table, f"at {self.lengths[-1]} tokens: {words}") if ends else table

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import attention as figures
        from llmprobe.results.figures.style import series_name

        if kind == "dispersion":
            return figures.draw_dispersion(self.to_frame(), ax=ax)
        if kind == "rows":
            return figures.draw_rows(self.to_frame(), ax=ax)
        if kind in ("terms", "map"):
            draw = {"terms": figures.draw_terms, "map": figures.draw_decisions}[kind]
            return draw(self.head_frame(), self.to_frame(), ax=ax)
        if kind == "prediction":
            return figures.draw_prediction(self.to_frame(), ax=ax)
        name = series_name(self.layer[0], self._heads()[0])
        return figures.draw_weights(self.first_kept(), self.lengths, title=name, ax=ax)


_COLUMNS = {
    "H / ln n": "H / ln n: entropy over that of uniform attention",
    "no first": "no first: the same without the first token",
    "spread": "spread: largest minus smallest logit",
    "Λ": "Λ: above 1, rows are dispersed",
    "first": "first: weight on the first token",
}


def _explained(table: Any, words: str) -> Any:
    """The table with what its columns mean below it."""
    table.caption = "\n".join([*filter(None, [table.caption]), words])
    return table
