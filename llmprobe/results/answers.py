"""Questions with one right answer of several tokens: how many are answered, by length.

    result = load_result("runs/addition")
    result.compare_frame()     # each variant against the first one, paired over seeds
    result.solved_frame()      # the longest length solved, over the longest of training
    result.plot("exact")

An answer is exact if all of its tokens are right; greedy decoding gives the same answers. A length
is solved by a seed that is exact on 90 % of its tests. As in `accuracy`, the seed is the unit:
variants share their seeds, so differences are paired, and a seed without finite numbers is not
counted. This module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmprobe.base.intervals import estimate, holm, paired_p
from llmprobe.base.lengths import spread
from llmprobe.base.signs import minus
from llmprobe.results.base import check_shape, records
from llmprobe.results.solved import SOLVED, SolvingResult, at_chance, judge
from llmprobe.results.tables import count, heading, interval_cell, mean_cell, p_cell, titled
from llmprobe.results.trained import Array, check_words
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd

METRICS = {"exact": "exact match", "token_accuracy": "token accuracy"}
"""What is measured at each length, and its name in words; more is better."""
MARGINS = {"exact": 0.01, "token_accuracy": 0.01}
"""Of new runs: differences of less than a point do not matter."""
_MAX_LENGTHS = 14
"""Rows of the table by length."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AnswersResult(SolvingResult, kind="answers"):
    """Exact answers of variants by length, trained with the same seeds."""

    plots: ClassVar[dict[str, str]] = {
        "exact": "share of exact answers against length, with training lengths",
        "tokens": "share of right tokens of answers against length",
        "solved": "longest length solved over the longest of training, by variant and seed",
    }
    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Exact answers within and beyond the training lengths",
            y="mean",
            low="low",
            high="high",
            axis="exact match, mean over seeds with 95 % CI",
            by="variant",
            x_axis="length of the question",
            log_x=False,
            percent=True,
            frame="summary_frame",
        ),
        Lines(
            title="Difference to the first variant",
            y="difference",
            low="low",
            high="high",
            axis="exact match minus the first variant's, paired, with 95 % CI",
            by="variant",
            x_axis="length of the question",
            log_x=False,
            percent=True,
            frame="compare_frame",
        ),
    )
    tests: ClassVar[str] = "n_examples"
    score: ClassVar[str] = "exact"

    counted: str
    """What a length counts, such as digits."""
    n_examples: tuple[int, ...]
    """Test examples of a seed, one number per length."""
    exact: Array
    """Share of answers of which all tokens are right; (variants, seeds, lengths), like the next.
    NaN for a seed whose weights are not finite."""
    token_accuracy: Array
    """Share of tokens of answers that are right, given those before them."""
    chance: Array
    """(lengths,): exact match of the most frequent answer, whatever the question."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words("counted", (self.counted,))
        shape = (len(self.variants), len(self.seeds), len(self.lengths))
        for name in (*METRICS, "chance"):
            values = getattr(self, name)
            check_shape(name, values, shape if name in METRICS else shape[2:])
            if (values < 0).any() or (values > 1).any():
                raise ValueError(f"{name} has values out of range, accepted: 0 to 1, or NaN")

    @property
    def unit(self) -> str:
        return self.counted

    def to_frame(self) -> "pd.DataFrame":
        """A row for each variant, seed and length."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [[self.task], self.variants, self.seeds, self.lengths],
            names=["task", "variant", "seed", "length"],
        )
        columns = {name: getattr(self, name).ravel() for name in METRICS}
        frame = pd.DataFrame(columns, index=index).reset_index()
        n_rows = len(self.variants) * len(self.seeds)
        frame.insert(4, "n_examples", np.tile(self.n_examples, n_rows))
        return frame

    def summary_frame(self, metric: str = "exact") -> "pd.DataFrame":
        """A row for each variant and length: a metric over seeds, with a 95 % t interval."""
        import pandas as pd

        values = self._values(metric)
        rows = [
            (variant, length, *estimate(values[v, :, n]))
            for v, variant in enumerate(self.variants)
            for n, length in enumerate(self.lengths)
        ]
        columns = ["variant", "length", "mean", "sd", "low", "high", "n_seeds"]
        return pd.DataFrame(rows, columns=columns)

    def compare_frame(self, metric: str = "exact") -> "pd.DataFrame":
        """A row for each other variant and length: its metric minus the first variant's.

        Paired over seeds: mean difference, 95 % t interval, p of the paired t test, and whether it
        is significant after Holm's correction over the variant's lengths. Where the differences do
        not vary there is no test: p is NaN. `verdict` is of the claim that the variant is better:
        confirmed or reversed where significant, equivalent where the interval lies within the run's
        margin, else undecided. Where all exact answers of both may be guesses, these two become
        “both at chance”.
        """
        import pandas as pd

        values, rows, margin = self._values(metric), [], self.margins.get(metric, 0)
        low = at_chance(self.exact, self.chance, self.n_examples)
        for variant, own, guessed in list(zip(self.variants, values, low & low[0], strict=True))[
            1:
        ]:
            found = [estimate(difference) for difference in (own - values[0]).T]
            p = [paired_p(e) for e in found]
            tested = zip(self.lengths, found, p, holm(p), guessed, strict=True)
            for length, e, one, s, nothing in tested:
                guesses = metric == "exact" and bool(nothing)
                word = judge(e.low, e.high, margin=margin, significant=bool(s), guessed=guesses)
                difference = (e.mean, e.low, e.high, one, s, e.n, word)
                rows.append((variant, self.variants[0], length, *difference))
        columns = ["variant", "reference", "length", "difference", "low", "high", "p"]
        return pd.DataFrame(rows, columns=[*columns, "significant", "n_seeds", "verdict"])

    def solved_frame(self) -> "pd.DataFrame":
        """A row for each variant: the longest length solved, over the longest of training.

        `mean`, `sd`, `low` and `high` are over `n_seeds` seeds, `least` and `most` are the extreme
        seeds. `difference` is to the first variant, paired over seeds, with its 95 % t interval and
        p of the paired t test, not corrected for the others.
        """
        import pandas as pd

        rows, solved = [], self.longest_solved
        for number, (variant, own) in enumerate(zip(self.variants, solved, strict=True)):
            e, against = estimate(own), estimate(own - solved[0] if number else [])
            known = own[np.isfinite(own)]
            ends = (known.min(), known.max()) if len(known) else (np.nan, np.nan)
            difference = (against.mean, against.low, against.high, paired_p(against))
            rows.append((variant, e.mean, e.sd, e.low, e.high, *ends, *difference, e.n))
        columns = ["variant", "mean", "sd", "low", "high", "least", "most", "difference"]
        columns += ["difference_low", "difference_high", "p", "n_seeds"]
        return pd.DataFrame(rows, columns=columns)

    def key_frame(self) -> "pd.DataFrame":
        return self.solved_frame()

    def headline(self) -> str:
        n, n_seeds = len(self.variants), len(self.seeds)
        found = [
            f"{row['variant']} {row['mean']:.2f} [{row['least']:.2f}, {row['most']:.2f}]"
            for row in self.solved_frame().to_dict("records")
        ]
        more = f" and {n - 3} more" if n > 3 else ""
        first, last = self.train_lengths
        return (
            f"{self.kind} {self.task}: {n} variant{'s' * (n > 1)}, "
            f"{self.lengths[0]}..{self.lengths[-1]} {self.unit} (trained on {first} to {last}), "
            f"{n_seeds} seed{'s' * (n_seeds > 1)}, {self.duration}; longest solved over training, "
            f"mean [least, most]: {', '.join(found[:3])}{more}"
        )

    def table(self, *, width: int | None = None) -> Any:
        """Exact match by length, and the longest length that each variant solves."""
        from rich.console import Group
        from rich.text import Text

        summary = self.summary_frame()
        cells = {
            (row["variant"], row["length"]): mean_cell(100 * row["mean"], 100 * row["sd"])
            for row in summary.to_dict("records")
        }
        by_length = titled("exact match, in %")
        by_length.add_column(self.unit, justify="right", no_wrap=True)
        by_length.add_column("", no_wrap=True)
        for variant in self.variants:
            by_length.add_column(heading(variant), justify="right")
        by_length.add_column("chance", justify="right")
        for length in spread(self.lengths, _MAX_LENGTHS):
            first, last = self.train_lengths
            row = (cells[variant, length] for variant in self.variants)
            guess = 100 * self.chance[self.lengths.index(length)]
            trained = "trained" if first <= length <= last else ""
            by_length.add_row(f"{length}", trained, *row, f"{guess:.1f}")
        about = (
            f"mean ± standard deviation over {count(summary.n_seeds, 'seed')}; "
            f"{count(self.n_examples, 'example')} per length, {self.whose_tests}; trained on "
            f"{self.train_lengths[0]} to {self.train_lengths[1]} {self.unit} for {self.settings}"
        )
        return Group(by_length, Text(about, style="italic"), Text(), self._solved_table())

    def _solved_table(self) -> Any:
        from rich.text import Text

        table = titled(
            f"longest length solved (at least {SOLVED:.0%} exact) over the longest of training, "
            f"{self.train_lengths[1]} {self.unit}; tested to {self.lengths[-1]}; differences to "
            f"{self.variants[0]} are paired over seeds, p is not corrected for multiple tests"
        )
        table.add_column("variant", overflow="fold")
        for name in ("mean", "least", "most", "seeds", "diff.", "95 % CI", "p"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.solved_frame().to_dict("records"):
            ends = {"low": row["difference_low"], "high": row["difference_high"]}
            numbers = (f"{row[name]:.2f}" for name in ("mean", "least", "most"))
            compared = not np.isnan(row["difference"])
            table.add_row(
                Text(row["variant"]),
                *numbers,
                f"{row['n_seeds']}",
                minus(f"{row['difference']:+.2f}") if compared else "",
                interval_cell(ends, "[{:+.2f}, {:+.2f}]") if compared else "",
                p_cell(row["p"]) if compared else "",
            )
        return table

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "comparisons": records(self.compare_frame()),
            "solved": records(self.solved_frame()),
            "reading": " ".join(self.remarks()),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import answers as figures

        if kind == "solved":
            return figures.draw_solved(
                self.longest_solved,
                self.solved_frame(),
                longest=self.lengths[-1] / self.train_lengths[1],
                ax=ax,
            )
        metric = "exact" if kind == "exact" else "token_accuracy"
        return figures.draw_answers(
            self.summary_frame(metric),
            name=METRICS[metric],
            counted=self.unit,
            train_lengths=self.train_lengths,
            n_examples=self.n_examples,
            chance=self.chance if metric == "exact" else None,
            ax=ax,
        )

    def _values(self, metric: str) -> Array:
        if metric not in METRICS:
            raise ValueError(f"metric: got {metric!r}, accepted: {', '.join(METRICS)}")
        values: Array = getattr(self, metric)
        return values
