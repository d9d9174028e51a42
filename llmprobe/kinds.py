"""The kinds of results: what each holds, its tables and its figures.

    result = load_result("runs/llama")
    result.to_frame()
    result.plot()

    VarianceResult    variance of attention outputs by length
    AttentionResult   where attention looks, by length, and the variance that this predicts

Those of the lab are in `synthetic.outcomes`, `.legality` and `.findings`; `load_result` opens them
like the others.

A series is one layer, or one head of a layer. Arrays have the shape (series,) or
(series, lengths, ...). "Over prompts" and "over features" name the axis of every statistic.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.results import Result, check_shape, read_result, records

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def load_result(folder: str | os.PathLike[str]) -> Result:
    """Open a saved result of any kind; `ResultFormatError` says why where it cannot."""
    known_kinds()
    return read_result(folder)


def known_kinds() -> dict[str, type[Result]]:
    """All kinds of results by name. A kind is known once its module was imported."""
    import llmprobe.synthetic.findings
    import llmprobe.synthetic.legality
    import llmprobe.synthetic.outcomes  # noqa: F401

    return dict(Result.kinds)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SeriesResult(Result, kind=""):
    """What results by layer, head and length share."""

    lengths: tuple[int, ...]
    layer_type: tuple[str, ...]
    """full, sliding or linear; one for each series."""
    warnings: tuple[str, ...]
    """What weakens the numbers, in words."""
    layer: Integers
    head: Integers
    """−1 where the series is a whole layer."""
    n_prompts: Integers
    """(series, lengths)"""

    by_length: ClassVar[tuple[str, ...]]
    """The columns of the frame, arrays of shape (series, lengths)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "layer_type", "warnings"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        series, lengths = len(self.layer_type), len(self.lengths)
        if not series or not lengths:
            raise ValueError("a result needs a series and a length")
        if not all(isinstance(length, int) and length > 0 for length in self.lengths):
            raise ValueError(f"lengths are {self.lengths!r}, accepted: positive whole numbers")
        if not all(isinstance(word, str) for word in self.warnings):
            raise ValueError("warnings need words")
        if not set(self.layer_type) <= {"full", "sliding", "linear"}:
            raise ValueError(f"layer_type is {self.layer_type!r}, accepted: full, sliding, linear")
        for name in ("layer", "head"):
            check_shape(name, getattr(self, name), (series,))
        for name in ("n_prompts", *self.by_length):
            check_shape(name, getattr(self, name), (series, lengths))

    def to_frame(self) -> "pd.DataFrame":
        """A row for each layer, head and length."""
        import pandas as pd

        n_lengths = len(self.lengths)
        columns: dict[str, Any] = {
            "layer": np.repeat(self.layer, n_lengths),
            "head": self._heads().repeat(n_lengths).reset_index(drop=True),
            "length": np.tile(self.lengths, len(self.layer)),
            "n_prompts": self.n_prompts.ravel(),
        }
        return pd.DataFrame(
            columns | {name: getattr(self, name).ravel() for name in self.by_length}
        )

    def headline(self) -> str:
        what = "layer" if (self.head < 0).all() else "head"
        n_series = f"{len(self.layer)} {what}{'s' * (len(self.layer) != 1)}"
        return (
            f"{self.kind} of {self.provenance.model}: {n_series}, "
            f"lengths {min(self.lengths)}..{max(self.lengths)}, {self.n_prompts.min()} prompts"
        )

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {"warnings": list(self.warnings)}

    def _heads(self) -> "pd.Series[Any]":
        import pandas as pd

        heads = pd.Series(self.head, dtype="Int64")
        return heads.mask(heads < 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VarianceResult(SeriesResult, kind="variance"):
    """How the variance of attention outputs changes with the length of the prompt."""

    plots: ClassVar[dict[str, str]] = {
        "decay": "standard deviation over prompts against length",
        "heads": "slopes by layer and head",
        "drift": "global mean and global variance against length",
        "features": "distributions of five features by length",
    }

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
        from llmprobe import plots

        if kind == "decay":
            return plots.draw_decay(
                self.to_frame(),
                component=self.component,
                slopes=[float(slope) for slope in self.slope],
                types=self.layer_type,
                ax=ax,
            )
        if kind == "heads":
            return plots.draw_slopes(self.decay_frame(), self.to_frame(), ax=ax)
        if kind == "drift":
            return plots.draw_drift(self.to_frame(), reference=self.reference, ax=ax)
        return plots.draw_features(self._feature_frame(), ax=ax)

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionResult(SeriesResult, kind="attention"):
    """Where the last query of a prompt looks, and how that changes with the prompt's length."""

    plots: ClassVar[dict[str, str]] = {
        "dispersion": "effective tokens against length",
        "weights": "the 16 largest weights of 32 prompts, by length",
        "prediction": "measured variance against what dispersion predicts",
    }

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
    """What dispersion alone predicts of it: the values' variance over tokens times E[Σa²]."""
    top: NDArray[np.float32]
    """Largest weights: (kept series, lengths, prompts, rank)."""

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
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = self.top.shape
        check_shape("top", self.top, (*kept[:1], len(self.lengths), *kept[2:4]))

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe import plots

        if kind == "dispersion":
            return plots.draw_dispersion(self.to_frame(), ax=ax)
        if kind == "prediction":
            return plots.draw_prediction(self.to_frame(), ax=ax)
        name = plots.series_name(self.layer[0], self._heads()[0])
        return plots.draw_weights(self.top[0], self.lengths, title=name, ax=ax)
