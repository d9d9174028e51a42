"""The variance of attention outputs by length.

result = load_result("runs/llama")
result.to_frame(), result.decay_frame(), result.reading()
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from llmprobe.results.base import check_shape
from llmprobe.results.series import Array, Integers, SeriesResult
from llmprobe.results.tables import MAX_ROWS, titled
from llmprobe.results.views import HeadMap, Lines, View

if TYPE_CHECKING:
    import pandas as pd


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
            title="Standard deviation over prompts",
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
    """d log std / d log N, the mean over features of each one's own; (series,), like the next."""
    slope_low: Array
    slope_high: Array
    """The 95 % interval, by a jackknife over groups of prompts."""
    r2: Array
    nonfinite: Integers
    """NaNs and infinities that were left out of the statistics."""
    features: Integers
    """The features of which values were kept."""
    feature_values: NDArray[np.float32]
    """Their values for some prompts: (kept series, lengths, features, prompts)."""

    by_length: ClassVar[tuple[str, ...]] = (
        "component_std",
        "std_q25",
        "std_median",
        "std_q75",
        "global_mean",
        "global_variance",
        "mean_drift",
        "vector_drift",
    )
    by_series: ClassVar[tuple[str, ...]] = ("slope", "slope_low", "slope_high", "r2")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "accuracy", tuple(self.accuracy))
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

    def decay_frame(self) -> "pd.DataFrame":
        """A row for each layer and head: the slope, its interval, R²."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self.by_series})

    def key_frame(self) -> "pd.DataFrame":
        return self.decay_frame()

    def ranking(self) -> Array:
        return self.slope

    def headline(self) -> str:
        slopes = self.slope[np.isfinite(self.slope)]
        return super().headline() + (
            f", median slope {np.median(slopes):+.2f}" if len(slopes) else ""
        )

    def reading(self) -> str:
        """What the slopes say, in words."""
        span = f"from {min(self.lengths)} to {max(self.lengths)} tokens"
        known = np.isfinite(self.slope_low)
        if not np.isfinite(self.slope).any():
            return f"No slope could be fitted {span}."
        if not known.any():
            return f"The slopes {span} have no confidence interval, so they show no trend."
        if len(self.slope) == 1:
            return (
                f"The standard deviation over prompts changes as N^{self.slope[0]:.2f} (95 % CI "
                f"{self.slope_low[0]:.2f} to {self.slope_high[0]:.2f}) {span}. Full dispersion "
                "over all tokens would give N^-0.50."
            )
        what = "heads" if self.at == "heads" else "layers"
        falls = int((known & (self.slope_high < 0)).sum())
        near = (self.slope_low <= -0.4) & (self.slope_high < -0.3) & (self.slope_high >= -0.6)
        law = int((known & near).sum())
        return (
            f"{falls} of {len(self.slope)} {what} lose variance {span} (95 % CI of the slope below "
            f"0). {law} {'is' if law == 1 else 'are'} consistent with full dispersion, N^-0.50 "
            "(lower end of the CI at most -0.4, upper end from -0.6 to -0.3). Slopes range from "
            f"{np.nanmin(self.slope):+.2f} to {np.nanmax(self.slope):+.2f}."
        )

    def remarks(self) -> list[str]:
        shares = (f"{n}: {a:.0%}" for n, a in zip(self.lengths, self.accuracy, strict=False))
        answers = f"accuracy on the first token of the answer, by length: {', '.join(shares)}"
        return [*([answers] if self.accuracy else []), self.reading()]

    def table(
        self, *, width: int | None = None, sort: str | None = None, rows: int | None = MAX_ROWS
    ) -> Any:
        intervals = zip(self.slope_low, self.slope_high, strict=True)
        ends = {
            "slope": [f"{slope:+.2f}" for slope in self.slope],
            "95 % CI": [f"{low:+.2f} to {high:+.2f}" for low, high in intervals],
            "R²": [f"{r2:.2f}" for r2 in self.r2],
        }
        title = "standard deviation over prompts, median over features"
        return self._table(title, self.std_median, ends=ends, width=width, sort=sort, rows=rows)

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
                ax=ax,
            )
        if kind == "heads":
            return figures.draw_slopes(self.decay_frame(), self.to_frame(), ax=ax)
        if kind == "drift":
            return figures.draw_drift(self.to_frame(), reference=self.reference, ax=ax)
        return figures.draw_features(self._feature_frame(), ax=ax)

    @classmethod
    def compare(cls, named: Mapping[str, Self]) -> tuple[Any, Any]:
        from llmprobe.results.figures.variance import draw_comparison

        frames = {name: result.to_frame() for name, result in named.items()}
        return compare_table(named.items()), draw_comparison(frames)

    def _feature_frame(self) -> "pd.DataFrame":
        """The kept values of the first series, long."""
        import pandas as pd

        values = self.feature_values[0]
        index = pd.MultiIndex.from_product(
            [self.lengths, self.features, range(values.shape[-1])],
            names=["length", "feature", "prompt"],
        )
        frame = pd.Series(values.ravel(), index=index, name="value").reset_index()
        return frame.assign(layer=self.layer[0], head=self._heads()[0])


def compare_table(results: Iterable[tuple[str, VarianceResult]]) -> Any:
    """A row for each named result: where its slopes lie."""
    table = titled("slopes of log std over log N")
    table.add_column("result")
    for name in ("at", "layers", "lengths", "prompts", "series"):
        table.add_column(name, justify="right")
    for name in ("median slope", "lowest", "highest"):
        table.add_column(name, justify="right")
    for name, result in results:
        layers, known = sorted(set(result.layer.tolist())), result.slope[np.isfinite(result.slope)]
        table.add_row(
            escape(name),
            escape(result.at),
            f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}..{layers[-1]}",
            f"{min(result.lengths)}..{max(result.lengths)}",
            f"{result.n_prompts.min()}",
            f"{len(result.slope)}",
            *(f"{f(known):+.2f}" if len(known) else "–" for f in (np.median, np.min, np.max)),
        )
    return table
