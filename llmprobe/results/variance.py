"""The variance of attention outputs by length.

result = load_result("runs/llama")
result.to_frame(), result.decay_frame(), result.reading()
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS, MARGIN, SLOPES, TESTS
from llmprobe.results.base import check_shape, missing_as_nan
from llmprobe.results.series import Array, Integers, SeriesResult
from llmprobe.results.slope_words import read_slopes
from llmprobe.results.tables import MAX_ROWS, signed_cells, span_cells
from llmprobe.results.views import HeadMap, Lines, View

if TYPE_CHECKING:
    import pandas as pd

ROOTS = {
    **{f"std_total{end}": f"total_variance{end}" for end in ENDS},
    "std_within": "within_variance",
}
"""Columns that are roots of others, on the scale that slopes are about."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VarianceResult(SeriesResult, kind="variance"):
    """How the variance of attention outputs changes with the length of the prompt."""

    plots: ClassVar[dict[str, str]] = {
        "decay": "standard deviation over prompts against length",
        "heads": "slopes by layer and head",
        "drift": "global mean and global variance against length",
        "features": "distributions of five features by length",
    }

    comparable: ClassVar[bool] = True
    views: ClassVar[tuple[View, ...]] = (
        HeadMap(
            title="Which heads lose variance",
            value="slope",
            axis="slope of log std over log N",
            low="slope_low",
            high="slope_high",
            frame="decay_frame",
        ),
        Lines(
            title="Total standard deviation over prompts",
            y="std_total",
            low="std_total_low",
            high="std_total_high",
            axis="root of the variance summed over features, 95 % CI",
            log_y=True,
        ),
        Lines(
            title="Standard deviation of single features",
            y="std_median",
            low="std_q25",
            high="std_q75",
            band="quartiles over features",
            axis="std over prompts, median and quartiles over features",
            log_y=True,
        ),
        Lines(
            title="Global variance",
            y="global_variance",
            axis="variance over features, mean over prompts",
            log_y=True,
        ),
    )
    kept: ClassVar[str] = "feature_values"
    joins: ClassVar[str] = "llmprobe.probes.variance"

    at: str
    """`output`: after the output projection; `heads`: each head before it."""
    component: int
    """The one feature that `component_std` is about (Figure 1)."""
    reference: int
    """The length that the drifts are measured from."""
    accuracy: tuple[float, ...]
    """Share of right answers at each length, for dictionary prompts; else empty."""
    component_std: Array
    """Standard deviation over prompts of the chosen feature; (series, lengths), like the next."""
    std_q25: Array
    """Lower quartile over features of the standard deviation over prompts."""
    std_median: Array
    std_q75: Array
    global_mean: Array
    """Mean over features of one output, averaged over prompts."""
    global_variance: Array
    """Variance over features of one output, as LayerNorm sees it, averaged over prompts."""
    mean_drift: Array
    """(global mean − the reference's) / the reference's global variance (Figure 3)."""
    vector_drift: Array
    """Distance of the mean outputs over the root of the reference's summed variance.

    Of n prompts, chance alone makes it about √(2/n)."""
    slope: Array
    """The headline, (series,) like the next: `slope_total`. In folders from before there was one it
    is what is now `slope_features`."""
    slope_low: Array
    slope_high: Array
    """The 95 % interval, by a jackknife over groups of prompts, or over queries if several are
    fixed."""
    r2: Array
    """Of the line through the total standard deviation."""
    nonfinite: Integers
    """NaNs and infinities that were left out of the statistics."""
    features: Integers
    """The features of which values were kept."""
    feature_values: NDArray[np.float32]
    """Their values for some prompts: (kept series, lengths, features, prompts)."""
    accuracy_chance: tuple[float, ...] = ()
    """The accuracy of a random value of the prompt, next to `accuracy`."""
    total_variance: Array = missing_as_nan("layer_type", "lengths")
    """Variance over prompts, summed over features; (series, lengths), like the next."""
    total_variance_low: Array = missing_as_nan("layer_type", "lengths")
    total_variance_high: Array = missing_as_nan("layer_type", "lengths")
    within_variance: Array = missing_as_nan("layer_type", "lengths")
    """Its part within queries, ½ E|o − o′|² of prompts with the same query; NaN unless several
    queries are fixed."""
    within_variance_low: Array = missing_as_nan("layer_type", "lengths")
    within_variance_high: Array = missing_as_nan("layer_type", "lengths")
    between_variance: Array = missing_as_nan("layer_type", "lengths")
    """Its part between queries: total − within."""
    between_variance_low: Array = missing_as_nan("layer_type", "lengths")
    between_variance_high: Array = missing_as_nan("layer_type", "lengths")
    step_slope: Array = missing_as_nan("layer_type", "lengths")
    """The tested slope from the previous length to this one; per octave where lengths double."""
    step_slope_low: Array = missing_as_nan("layer_type", "lengths")
    step_slope_high: Array = missing_as_nan("layer_type", "lengths")
    slope_total: Array = missing_as_nan("layer_type")
    """d log std / d log N of the total standard deviation, the root of the summed variance."""
    slope_total_low: Array = missing_as_nan("layer_type")
    slope_total_high: Array = missing_as_nan("layer_type")
    slope_within: Array = missing_as_nan("layer_type")
    """The same of the within-query standard deviation; NaN unless several queries are fixed."""
    slope_within_low: Array = missing_as_nan("layer_type")
    slope_within_high: Array = missing_as_nan("layer_type")
    slope_features: Array = missing_as_nan("layer_type")
    """The mean over features of each one's own slope."""
    slope_features_low: Array = missing_as_nan("layer_type")
    slope_features_high: Array = missing_as_nan("layer_type")
    slope_uniform: Array = missing_as_nan("layer_type")
    """The slope that uniform attention would have on the same prompts."""
    curvature: Array = missing_as_nan("layer_type")
    """Change of the tested slope with each doubling of the length; above 0, decay slows down."""
    p_curvature: Array = missing_as_nan("layer_type")
    """Lack of fit: of the test that curvature is 0."""
    p_zero: Array = missing_as_nan("layer_type")
    """Of the test that the tested slope is 0."""
    p_flat: Array = missing_as_nan("layer_type")
    """Of the test that the tested slope is 0.1 or more away from 0."""
    p_uniform: Array = missing_as_nan("layer_type")
    """Of the test that the tested slope is 0.1 or more away from `slope_uniform`."""
    slope_null: Array = missing_as_nan("layer_type")
    """The tested slope of the null model, if there is one, on the same prompts."""
    slope_null_low: Array = missing_as_nan("layer_type")
    slope_null_high: Array = missing_as_nan("layer_type")
    p_null: Array = missing_as_nan("layer_type")
    """Of the paired test that the tested slope is that of the null model."""

    by_length: ClassVar[tuple[str, ...]] = (
        "component_std",
        "std_q25",
        "std_median",
        "std_q75",
        "global_mean",
        "global_variance",
        "mean_drift",
        "vector_drift",
        *(f"{name}_variance{end}" for name in ("total", "within", "between") for end in ENDS),
        *(f"step_slope{end}" for end in ENDS),
    )
    by_series: ClassVar[tuple[str, ...]] = (
        *("slope", "slope_low", "slope_high", "r2"),
        *(name + end for name in SLOPES[1:] for end in ENDS),
        *TESTS,
        *(f"slope_null{end}" for end in ENDS),
        "p_null",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("accuracy", "accuracy_chance"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self._is_old:
            for end in ENDS:
                object.__setattr__(self, f"slope_features{end}", getattr(self, f"slope{end}"))
        if self.reference not in self.lengths or not isinstance(self.component, int):
            raise ValueError(
                f"got reference {self.reference!r} and component {self.component!r}, accepted: one "
                "of the lengths, and a whole number"
            )
        for name in (*self.by_series, "nonfinite"):
            check_shape(name, getattr(self, name), (len(self.layer_type),))
        values, kept = self.feature_values, len(self.features)
        check_shape(
            "feature_values",
            values,
            (*values.shape[:1], len(self.lengths), kept, *values.shape[3:]),
        )
        if self.at not in ("output", "heads"):
            raise ValueError(f"at: got {self.at!r}, accepted: output, heads")

    @property
    def _is_old(self) -> bool:
        """From before there was a total: what was called slope is the mean over features."""
        return bool(np.isnan(self.total_variance).all())

    @property
    def tested(self) -> str:
        """Which slope labels are about: within (queries) if there is one, else total.

        Folders of older versions have features only, and no labels.
        """
        if self._is_old:
            return "features"
        return "within" if np.isfinite(self.slope_within).any() else "total"

    def labels(self) -> NDArray[np.str_]:
        """What each series does, by tests at 5 %, corrected over the series by Holm's procedure.

        dispersing: equivalent to uniform attention on the same prompts (slopes nearer than 0.1);
        flat: equivalent to 0; falling and rising: neither, but different from 0; undecided.
        """
        slope = getattr(self, f"slope_{self.tested}")
        trend = holm(self.p_zero)
        # Where uniform attention hardly falls itself, its slope tells nothing.
        told_apart = self.slope_uniform < -2 * MARGIN
        chosen = [
            told_apart & holm(self.p_uniform),
            holm(self.p_flat),
            trend & (slope < 0),
            trend & (slope > 0),
        ]
        return np.select(chosen, ["dispersing", "flat", "falling", "rising"], "undecided")

    def root(self, name: str) -> Array:
        """`std_total`, with `_low` or `_high` its ends, or `std_within`: (series, lengths)."""
        found: Array = np.sqrt(getattr(self, ROOTS[name]))
        return found

    def to_frame(self) -> "pd.DataFrame":
        frame = super().to_frame()
        at = list(frame.columns).index("total_variance")
        for place, name in enumerate(ROOTS, start=at):
            frame.insert(place, name, self.root(name).ravel())
        return frame

    def decay_frame(self) -> "pd.DataFrame":
        """A row for each layer and head: slopes with their intervals, tests, label."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        columns |= {name: getattr(self, name) for name in self.by_series}
        return pd.DataFrame(columns | {"label": self.labels().astype(object)})

    def key_frame(self) -> "pd.DataFrame":
        return self.decay_frame()

    def ranking(self) -> Array:
        return self.slope

    def headline(self) -> str:
        slopes = self.slope[np.isfinite(self.slope)]
        return super().headline() + (
            minus(f", median slope {np.median(slopes):+.2f}") if len(slopes) else ""
        )

    def reading(self) -> str:
        """What the slopes say, in words."""
        return read_slopes(self)

    @property
    def null(self) -> str | None:
        """The null model that was run on the same prompts: untrained, shuffled or None."""
        return self.provenance.arguments.get("null") if np.isfinite(self.p_null).any() else None

    def references(self) -> dict[str, float]:
        """Slopes to compare with, where they are known: medians over the series.

        Of uniform attention on the same prompts (without a window, if some layers have none), which
        the label "dispersing" is about, and of the null model.
        """
        full = np.array(self.layer_type) == "full"
        found = {"uniform attention": self.slope_uniform[full if full.any() else slice(None)]}
        if self.null is not None:
            many = len(self.layer) > 1
            found[f"{self.null}, median" if many else f"{self.null} model"] = self.slope_null
        known = {name: slopes[np.isfinite(slopes)] for name, slopes in found.items()}
        return {name: float(np.median(slopes)) for name, slopes in known.items() if len(slopes)}

    def remarks(self) -> list[str]:
        shares = (f"{n}: {a:.0%}" for n, a in zip(self.lengths, self.accuracy, strict=False))
        answers = f"accuracy on the first token of the answer, by length: {', '.join(shares)}"
        if self.accuracy_chance:
            random = ", ".join(f"{share:.0%}" for share in self.accuracy_chance)
            answers += f"; a random value of the prompt would be right in {random}"
        queries = self.query_text()
        return [
            *([answers] if self.accuracy else []),
            *([queries] if queries else []),
            self.reading(),
        ]

    def table(
        self, *, width: int | None = None, sort: str | None = None, rows: int | None = MAX_ROWS
    ) -> Any:
        ends = {
            "slope": signed_cells(self.slope),
            "95 % CI": span_cells(self.slope_low, self.slope_high),
        }
        if self.tested == "within":
            ends["within"] = signed_cells(self.slope_within)
            ends["95 % CI "] = span_cells(self.slope_within_low, self.slope_within_high)
        ends["R²"] = [f"{r2:.2f}" for r2 in self.r2]
        if not self._is_old:
            ends["label"] = self.labels().tolist()
        # What the slope is about; folders of older versions have no total.
        title, std = "total standard deviation over prompts", self.root("std_total")
        if self._is_old:
            title, std = "standard deviation over prompts, median over features", self.std_median
        return self._table(title, std, ends=ends, width=width, sort=sort, rows=rows)

    def to_document(self) -> dict[str, Any]:
        decay = self._records(self.decay_frame())
        return super().to_document() | {"decay": decay, "reading": self.reading()}

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import variance as figures

        if kind == "decay":
            return figures.draw_decay(
                self.to_frame(),
                component=self.component,
                slopes=[float(slope) for slope in self.slope],
                types=self.layer_type,
                references=self.references(),
                ax=ax,
            )
        if kind == "heads":
            frame, rows = self.decay_frame(), self.to_frame()
            return figures.draw_slopes(frame, rows, tested=self.tested, ax=ax)
        if kind == "drift":
            return figures.draw_drift(self.to_frame(), reference=self.reference, ax=ax)
        return figures.draw_features(self._feature_frame(), ax=ax)

    @classmethod
    def compare(cls, named: Mapping[str, Self]) -> tuple[Any, Any]:
        from rich.console import Group

        from llmprobe.results.figures.variance import draw_comparison
        from llmprobe.results.pairs import check_comparable, compare_table, pair_table, pairs_of

        check_comparable(named)
        frames = {name: result.to_frame() for name, result in named.items()}
        table, pairs = compare_table(named.items()), pairs_of(named)
        if pairs is not None:
            table = Group(table, pair_table(pairs))
        return table, draw_comparison(frames)

    @classmethod
    def compare_document(cls, named: Mapping[str, Self]) -> dict[str, Any]:
        from llmprobe.results.pairs import check_comparable, pairs_of

        check_comparable(named)
        pairs = pairs_of(named)
        rows = [] if pairs is None else next(iter(named.values()))._records(pairs)
        return super().compare_document(named) | {"pairs": rows}

    def _feature_frame(self) -> "pd.DataFrame":
        """The kept values of the first series, long."""
        import pandas as pd

        values = self.first_kept()
        index = pd.MultiIndex.from_product(
            [self.lengths, self.features, range(values.shape[-1])],
            names=["length", "feature", "prompt"],
        )
        frame = pd.Series(values.ravel(), index=index, name="value").reset_index()
        return frame.assign(layer=self.layer[0], head=self._heads()[0])
