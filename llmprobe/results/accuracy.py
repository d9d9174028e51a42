"""Sets: how accurate variants are at lengths that training never saw, over many seeds.

    result = load_result("runs/argmax")
    result.compare_frame()     # each variant against the first one, paired over seeds
    result.tail_frame()        # how fast the variance of single features falls
    result.drift_frame()       # how far the global mean drifts, whichever way
    result.reading()           # what is confirmed, in words
    result.plot("shift")

The seed is the unit of observation: every interval and every test is over seeds. Variants share
their seeds, that is their data and their initial weights, so differences are paired. A seed whose
numbers are not finite is left out and not counted. All statistics of the attention output are of
what the reading MLP is given, behind the norm. This module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmprobe.base.intervals import (
    divide,
    estimate,
    fit_decay,
    geometric_estimate,
    holm,
    magnitude,
    paired_p,
)
from llmprobe.base.signs import minus
from llmprobe.results.accuracy_steps import by_steps
from llmprobe.results.accuracy_tables import against, drift_table, tail_table
from llmprobe.results.base import check_shape, missing_as_nan, records
from llmprobe.results.solved import SolvingResult, at_chance, judge
from llmprobe.results.tables import count
from llmprobe.results.trained import Array, check_whole
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd


MAX_EXAMPLES, MAX_WEIGHTS = 32, 16
"""Of `top_weights`, as in Figure 4."""
MARGINS = {"accuracy": 0.01}
"""Of new runs: differences of less than a point do not matter."""
_TAIL = 64
"""The tail begins at this many times the longest training length: there 1/N has set in."""
_MIN_TAIL = 3


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SyntheticResult(SolvingResult, kind="synthetic"):
    """Accuracy and attention outputs of variants by length, trained with the same seeds."""

    plots: ClassVar[dict[str, str]] = {
        "accuracy": "accuracy against length, with training lengths and chance",
        "shift": "global mean, global variance and variance of single features against length",
        "features": "distributions of single features by length",
        "weights": "the 16 largest weights of 32 sets, by length",
        "steps": "accuracy against training steps, at some lengths",
    }
    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Accuracy beyond the training lengths",
            y="mean",
            low="low",
            high="high",
            axis="accuracy, mean over seeds with 95 % CI",
            by="variant",
            x_axis="items in a set N",
            percent=True,
            frame="summary_frame",
        ),
        Lines(
            title="Difference to the first variant",
            y="difference",
            low="low",
            high="high",
            axis="accuracy minus the first variant's, paired, with 95 % CI",
            by="variant",
            x_axis="items in a set N",
            percent=True,
            frame="compare_frame",
        ),
    )
    by_length: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "global_mean",
        "global_variance",
        "feature_variance",
        "entropy",
        "global_mean_error",
    )

    tests: ClassVar[str] = "n_sets"
    score: ClassVar[str] = "accuracy"
    lists: ClassVar[tuple[str, ...]] = (*SolvingResult.lists, "feature_indices", "score_steps")

    n_sets: tuple[int, ...]
    """Test sets, one number per length."""
    chance: float
    """Accuracy of guessing."""
    feature_indices: tuple[int, ...]
    """The features of which values were kept."""
    accuracy: Array
    """Share of right answers; (variants, seeds, lengths), like the next. NaN for a seed whose
    weights are not finite."""
    global_mean: Array
    """Mean over features of one attention output, averaged over sets."""
    global_variance: Array
    """Variance over features of one attention output, as LayerNorm sees it, averaged over sets."""
    feature_variance: Array
    """Variance over sets of one feature, averaged over features."""
    entropy: Array
    """Of the attention weights in nats, mean over sets and heads; NaN where the weights are no
    distribution."""
    global_mean_error: Array = missing_as_nan("variants", "seeds", "lengths")
    """Standard error of `global_mean` over sets; NaN in results of older versions."""
    score_steps: tuple[int, ...] = ()
    """Training steps before the last at which networks were tested too."""
    step_accuracy: Array = missing_as_nan("variants", "seeds", "score_steps", "lengths")
    """Share of right answers there: (variants, seeds, score steps, lengths)."""
    feature_values: NDArray[np.float32]
    """Values of the kept features, first seed: (variants, lengths, sets, features)."""
    top_weights: NDArray[np.float32]
    """Largest attention weights, first seed: (variants, lengths, examples, rank), largest first;
    zeros where a set has fewer items."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("feature_indices", self.feature_indices)
        if not isinstance(self.chance, float) or not 0 <= self.chance <= 1:
            raise ValueError(f"chance: got {self.chance!r}, accepted: a share from 0 to 1")
        shape = (len(self.variants), len(self.seeds), len(self.lengths))
        for name in self.by_length:
            check_shape(name, getattr(self, name), shape)
        self._check_steps()
        kept = (shape[0], shape[2])
        values, top = self.feature_values, self.top_weights
        n_features = len(self.feature_indices)
        check_shape("feature_values", values, (*kept, *values.shape[2:3], n_features))
        check_shape("top_weights", top, (*kept, *top.shape[2:4]))
        if top.ndim != 4 or top.shape[2] > MAX_EXAMPLES or top.shape[3] > MAX_WEIGHTS:
            raise ValueError(
                f"top_weights has shape {top.shape}, accepted: up to {MAX_EXAMPLES} examples of "
                f"{MAX_WEIGHTS} weights"
            )
        known = self.accuracy[~np.isnan(self.accuracy)]
        if ((known < 0) | (known > 1)).any():
            raise ValueError("accuracy has values out of range, accepted: 0 to 1, or NaN")

    def _check_steps(self) -> None:
        steps, found = self.score_steps, self.step_accuracy
        check_whole("score_steps", steps, least=1)
        if list(steps) != sorted(set(steps)) or (steps and steps[-1] >= self.steps):
            raise ValueError(f"score_steps: got {steps!r}, accepted: rising, below {self.steps}")
        shape = (len(self.variants), len(self.seeds), len(steps), len(self.lengths))
        check_shape("step_accuracy", found, shape)
        if ((found < 0) | (found > 1)).any():
            raise ValueError("step_accuracy has values out of range, accepted: 0 to 1, or NaN")

    @property
    def unit(self) -> str:
        return "items"

    @property
    def reference(self) -> int:
        """The length that drifts are measured from: the nearest to the longest of training."""
        return min(self.lengths, key=lambda length: abs(length - self.train_lengths[1]))

    def to_frame(self) -> "pd.DataFrame":
        """A row for each variant, seed and length."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [[self.task], self.variants, self.seeds, self.lengths],
            names=["task", "variant", "seed", "length"],
        )
        columns = {name: getattr(self, name).ravel() for name in self.by_length}
        frame = pd.DataFrame(columns, index=index).reset_index()
        frame.insert(5, "n_sets", np.tile(self.n_sets, len(self.variants) * len(self.seeds)))
        return frame

    def summary_frame(self) -> "pd.DataFrame":
        """A row for each variant and length: accuracy over seeds, with a 95 % t interval."""
        import pandas as pd

        rows = [
            (variant, length, e.mean, e.sd, e.n, e.low, e.high)
            for v, variant in enumerate(self.variants)
            for n, length in enumerate(self.lengths)
            for e in [estimate(self.accuracy[v, :, n])]
        ]
        columns = ["variant", "length", "mean", "sd", "n_seeds", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def compare_frame(self) -> "pd.DataFrame":
        """A row for each other variant and length: its accuracy minus the first variant's.

        Paired over seeds: mean difference, 95 % t interval, p of the paired t test, and whether it
        is significant after Holm's correction over the variant's lengths. Where the differences
        do not vary there is no test: p is NaN. `verdict` is of the claim that the variant is
        better: confirmed or reversed where significant, equivalent where the interval lies within
        the run's margin, else undecided. Where neither is above chance, the latter two become
        “both at chance”.
        """
        import pandas as pd

        parts, margin = [], self.margins.get("accuracy", 0)
        low = at_chance(self.accuracy, self.chance, self.n_sets)
        scores = zip(self.variants, self.accuracy, low & low[0], strict=True)
        for variant, accuracy, guessed in list(scores)[1:]:
            rows = []
            for length, a, b in zip(self.lengths, accuracy.T, self.accuracy[0].T, strict=True):
                both = np.isfinite(a) & np.isfinite(b)
                e = estimate((a - b)[both])
                p = paired_p(e)
                rows.append((variant, self.variants[0], length, e.mean, e.low, e.high, p, e.n))
            significant = holm([row[-2] for row in rows])
            for row, s, guess in zip(rows, significant, guessed, strict=True):
                word = judge(*row[4:6], margin=margin, significant=bool(s), guessed=bool(guess))
                parts.append((*row[:-1], s, row[-1], word))
        columns = ["variant", "reference", "length", "difference", "low", "high", "p"]
        return pd.DataFrame(parts, columns=[*columns, "significant", "n_seeds", "verdict"])

    def step_frame(self) -> "pd.DataFrame":
        """A row for each variant, scored step and length; the last step is that of the result.

        Accuracy over seeds with its 95 % t interval, and what `compare_frame` has of the difference
        to the first variant at that step, NaN for the first variant itself.
        """
        return by_steps(self)

    def key_frame(self) -> "pd.DataFrame":
        return self.compare_frame() if len(self.variants) > 1 else self.summary_frame()

    def tail_frame(self) -> "pd.DataFrame":
        """A row for each variant: how fast the variance over sets of single features falls.

        `slope` is d log variance / d log N in the tail, least squares for each seed, then the mean
        over seeds; dispersion gives −1. `global_variance_ratio` is the global variance at the
        longest length over that at `reference`, the mean over seeds. Empty with under 3 lengths.
        """
        import pandas as pd

        far = sum(length >= _TAIL * self.train_lengths[1] for length in self.lengths)
        n = max(far, _MIN_TAIL)
        columns = ["variant", "slope", "low", "high", "first_length", "n_seeds"]
        rows = []
        if n <= len(self.lengths):
            slopes = fit_decay(self.lengths[-n:], self.feature_variance[..., -n:]).slope
            at_reference = self.global_variance[..., self.lengths.index(self.reference)]
            ratio = divide(self.global_variance[..., -1], at_reference)
            for v, variant in enumerate(self.variants):
                e = estimate(slopes[v])
                first = self.lengths[-n]
                rows.append((variant, e.mean, e.low, e.high, first, e.n, estimate(ratio[v]).mean))
        return pd.DataFrame(rows, columns=[*columns, "global_variance_ratio"])

    def drift_frame(self) -> "pd.DataFrame":
        """A row for each variant and length: how far the global mean drifts, whichever way.

        A seed's drift is (global mean − that at `reference`) / the global variance there. Its sign
        differs between seeds, so `rms` is the root mean square over them, with a 95 % interval.
        `noise` is what the finite number of sets alone would give; p is of the test that there is
        nothing else, `significant` after Holm's correction over the variant's lengths. Both are
        NaN for results of older versions, and at `reference`.
        """
        import pandas as pd

        drift, error = self._drifts()
        parts = []
        for v, variant in enumerate(self.variants):
            rows = [
                (variant, length, *magnitude(drift[v, :, n], error[v, :, n]))
                for n, length in enumerate(self.lengths)
            ]
            significant = holm([row[-2] for row in rows])
            parts += [(*row[:-1], s, row[-1]) for row, s in zip(rows, significant, strict=True)]
        columns = ["variant", "length", "rms", "low", "high", "noise", "p"]
        return pd.DataFrame(parts, columns=[*columns, "significant", "n_seeds"])

    def _drifts(self) -> tuple[Array, Array]:
        """Drifts of the global mean and their errors over sets: (variants, seeds, lengths)."""
        at = slice(None), slice(None), [self.lengths.index(self.reference)]
        scale = self.global_variance[at]
        error = np.sqrt(self.global_mean_error**2 + self.global_mean_error[at] ** 2)
        error[at] = np.nan  # there it is no drift
        return divide(self.global_mean - self.global_mean[at], scale), divide(error, scale)

    def shift_frame(self) -> "pd.DataFrame":
        """Figure 3: a row for each statistic, variant and length, over seeds, with 95 % intervals.

        `mean_drift` is (global mean − that at `reference`) / the global variance there, with its
        sign: over seeds it may cancel, see `drift_frame`. The two variances are positive and drawn
        on log axes, so their means are geometric.
        """
        import pandas as pd

        drift, _ = self._drifts()
        rows = []
        for name in ("mean_drift", "global_variance", "feature_variance"):
            is_drift = name == "mean_drift"
            values, mean = (
                (drift, estimate) if is_drift else (getattr(self, name), geometric_estimate)
            )
            for v, variant in enumerate(self.variants):
                for n, length in enumerate(self.lengths):
                    e = mean(values[v, :, n])
                    rows.append((name, variant, length, e.mean, e.low, e.high, e.n))
        columns = ["statistic", "variant", "length", "mean", "low", "high", "n_seeds"]
        return pd.DataFrame(rows, columns=columns)

    def feature_frame(self) -> "pd.DataFrame":
        """Figure 2: a row for each kept value of the first seed."""
        import pandas as pd

        n_sets = self.feature_values.shape[2]
        index = pd.MultiIndex.from_product(
            [self.variants, self.lengths, range(n_sets), self.feature_indices],
            names=["variant", "length", "set", "feature"],
        )
        return pd.Series(self.feature_values.ravel(), index=index, name="value").reset_index()

    def headline(self) -> str:
        n = len(self.variants)
        line = (
            f"{self.kind} {self.task}: {n} variant{'s' * (n > 1)}, lengths {self.lengths[0]}.."
            f"{self.lengths[-1]}, {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}, "
            f"{self.duration}"
        )
        frame = self.compare_frame()
        last = frame[frame.length == self.lengths[-1]]
        points = (100 * last[["difference", "low", "high"]]).to_numpy()
        found = [
            f"{variant} "
            + minus(f"{difference:+.1f}" + ("" if np.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"))
            for variant, (difference, low, high) in zip(last.variant, points, strict=True)
        ]
        if not found:
            return line
        more = f" and {n - 3} more" if n > 3 else ""
        return (
            f"{line}; accuracy against {self.variants[0]} at {self.lengths[-1]}, in points: "
            f"{', '.join(found[:2])}{more}"
        )

    def table(self, *, width: int | None = None) -> Any:
        """A table for each variant against the first one, a row per length, and how tails fall.

        One table for all would be wider than a terminal from the third variant on.
        """
        from rich.console import Group
        from rich.text import Text

        summary, comparisons = self.summary_frame(), self.compare_frame()
        first, *others = self.variants
        parts: list[Any] = []
        for name in others or [first]:
            parts += [against(name, summary, comparisons[comparisons.variant == name]), Text()]
        about = (
            f"accuracy in %, mean ± standard deviation over {count(summary.n_seeds, 'seed')}; "
            f"{count(self.n_sets, 'set')} per length, {self.whose_tests}"
        )
        if others:
            about += (
                f"; difference in points, paired over {count(comparisons.n_seeds, 'seed')}, with "
                "its 95 % CI over seeds; p of the paired t test; * significant at 0.05 after "
                "Holm's correction over the lengths; verdict on “the variant is better”"
            )
        else:  # no reading says it
            about += f". Trained for {self.settings}"
        parts.append(Text(f"{about}.", style="italic"))
        if len(tail := self.tail_frame()):
            parts += [Text(), tail_table(tail, self.lengths[-1], self.reference)]
        if self.lengths[-1] != self.reference:
            drift = self.drift_frame()
            parts += [Text(), drift_table(drift[drift.length == self.lengths[-1]], self.reference)]
        return Group(*parts)

    def to_document(self) -> dict[str, Any]:
        steps = {"steps": records(self.step_frame())} if self.score_steps else {}
        return (
            super().to_document()
            | steps
            | {
                "comparisons": records(self.compare_frame()),
                "tail": records(self.tail_frame()),
                "drift": records(self.drift_frame()),
                "reading": " ".join(self.remarks()),
            }
        )

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import accuracy as figures

        if kind == "accuracy":
            return figures.draw_accuracy(
                self.summary_frame(),
                self.compare_frame(),
                train_lengths=self.train_lengths,
                chance=self.chance,
                n_sets=self.n_sets,
                ax=ax,
            )
        if kind == "shift":
            frame, drift = self.shift_frame(), self.drift_frame()
            return figures.draw_shift(
                frame, drift, reference=self.reference, n_sets=self.n_sets, ax=ax
            )
        if kind == "steps":
            from llmprobe.results.figures.steps import draw_steps

            frame, longest = self.step_frame(), self.train_lengths[1]
            return draw_steps(frame, longest=longest, n_sets=self.n_sets, ax=ax)
        if kind == "features":
            return figures.draw_features(self.feature_frame(), seed=self.seeds[0], ax=ax)
        return figures.draw_weights(
            self.top_weights, self.lengths, variants=self.variants, seed=self.seeds[0], ax=ax
        )
