"""Where attention looks, by length, and the variance that this predicts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import divide
from llmprobe.results.base import check_shape
from llmprobe.results.series import Array, SeriesResult


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionResult(SeriesResult, kind="attention"):
    """Where the last query of a prompt looks, and how that changes with the prompt's length."""

    plots: ClassVar[dict[str, str]] = {
        "dispersion": "effective tokens against length",
        "weights": "the 16 largest weights of 32 prompts, by length",
        "prediction": "measured variance against what dispersion predicts",
    }

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

    def table(self, *, width: int | None = None) -> Any:
        share = divide(self.measured_variance[:, -1], self.predicted_variance[:, -1])
        columns = {
            "entropy": self.entropy[:, -1],
            "first token": self.first[:, -1],
            "variance / predicted": share,
        }
        ends = {name: [f"{value:.2f}" for value in values] for name, values in columns.items()}
        title = "effective tokens 1/Σa², mean over prompts"
        return self._table(title, self.effective, ends=ends, width=width)

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import attention as figures
        from llmprobe.results.figures.style import series_name

        if kind == "dispersion":
            return figures.draw_dispersion(self.to_frame(), ax=ax)
        if kind == "prediction":
            return figures.draw_prediction(self.to_frame(), ax=ax)
        name = series_name(self.layer[0], self._heads()[0])
        return figures.draw_weights(self.top[0], self.lengths, title=name, ax=ax)
