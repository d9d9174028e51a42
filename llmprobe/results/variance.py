"""The variance of attention outputs by length.

result = load_result("runs/llama")
result.to_frame(), result.decay_frame(), result.reading()
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.results.base import check_shape, records
from llmprobe.results.series import Array, Integers, SeriesResult

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
                f"reference {self.reference!r} or component {self.component!r} is wrong"
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
            raise ValueError(f"at is {self.at!r}, accepted: output, heads")

    def decay_frame(self) -> "pd.DataFrame":
        """A row for each layer and head: the slope, its interval, R²."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self.by_series})

    def headline(self) -> str:
        slopes = self.slope[np.isfinite(self.slope)]
        return super().headline() + (
            f", median slope {np.median(slopes):+.2f}" if len(slopes) else ""
        )

    def reading(self) -> str:
        """What the slopes say, in a sentence."""
        span = f"from {min(self.lengths)} to {max(self.lengths)} tokens"
        known = np.isfinite(self.slope_low)
        if not np.isfinite(self.slope).any():
            return f"No slope could be fitted {span}."
        if not known.any():
            return f"Slopes {span} have no interval, so nothing can be said of them."
        if len(self.slope) == 1:
            return (
                f"The standard deviation over prompts changes as N^{self.slope[0]:.2f} (95 % "
                f"interval {self.slope_low[0]:.2f} to {self.slope_high[0]:.2f}) {span}; attention "
                "that disperses over all tokens would give N^-0.50."
            )
        what = "heads" if self.at == "heads" else "layers"
        falls = int((known & (self.slope_high < 0)).sum())
        near = (self.slope_low <= -0.4) & (self.slope_high < -0.3) & (self.slope_high >= -0.6)
        law = int((known & near).sum())
        return (
            f"Of {len(self.slope)} {what}, {falls} fall {span} (95 % interval below 0), {law} of "
            "them near the N^-0.50 of attention that disperses (interval reaching -0.4, its upper "
            f"end from -0.6 to -0.3); slopes go from {np.nanmin(self.slope):+.2f} to "
            f"{np.nanmax(self.slope):+.2f}."
        )

    def to_document(self) -> dict[str, Any]:
        decay = records(self.decay_frame())
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
