"""Why accuracy falls on larger sets: changes at test time that repair it, and what predicts it.

    result = explain_synthetic("runs/argmax")
    result.repair_frame()      # each change against the network as it is, paired over seeds
    result.predictor_frame()   # rank correlations with being right
    result.reading()           # which change repairs, in words

The seed is the unit of observation of every interval of accuracy. Predictors are of the attention
output behind W_O and before the norm: what the changes act on. This module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmprobe.base.intervals import estimate, holm, paired_p
from llmprobe.base.ranks import correlate_ranks
from llmprobe.base.signs import minus
from llmprobe.results.base import check_shape, records
from llmprobe.results.solved import AT_CHANCE, NOTHING_COMPARED, at_chance, judge
from llmprobe.results.tables import count, interval_cell, titled
from llmprobe.results.trained import (
    Array,
    TrainedResult,
    check_different,
    check_words,
    explained,
    in_points,
    spoken,
)

if TYPE_CHECKING:
    import pandas as pd


CONDITIONS = ("as is", "moments", "strongest", "shorter", "shorter, lost moments")
"""The network as it is; features with the mean and deviation of the longest training length L;
attention among the L items with the largest weights; attention of a shorter set, the right item and
L − 1 random ones; the same with the mean and deviation that features have at N items."""
PREDICTORS = ("attention_on_target", "logit_gap", "global_variance", "feature_variance")
MARGINS = {"accuracy": 0.01}
"""Of new runs: differences of less than a point do not matter."""
WORDS = {
    "moments": "the moments of training",
    "strongest": "attention among the strongest items",
    "shorter": "the attention of a shorter set",
    "shorter, lost moments": "that with the moments of the large set",
}
"""What each change gives an attention output."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MechanismResult(TrainedResult, kind="mechanism"):
    """Accuracy of trained networks under changes of their attention output, and predictors."""

    plots: ClassVar[dict[str, str]] = {
        "repair": "accuracy against length under each change, a panel for each variant",
        "predictors": "rank correlation of each predictor with being right",
    }
    joins: ClassVar[str] = "llmprobe.synthetic.mechanism"
    tests: ClassVar[str] = "n_sets"
    lists: ClassVar[tuple[str, ...]] = (*TrainedResult.lists, "variants", "conditions")

    variants: tuple[str, ...]
    n_sets: tuple[int, ...]
    """Test sets, one number per length."""
    conditions: tuple[str, ...]
    """The first is the network as it is."""
    accuracy: Array
    """Share of right answers: (conditions, variants, seeds, lengths)."""
    attention_on_target: Array
    """Weight of the right item, mean over sets and heads: (variants, seeds, lengths), like the
    next."""
    logit_gap: Array
    """Logit of the right item minus the largest other one, in nats; of the weights' logarithms."""
    global_variance: Array
    """Variance over features of one attention output."""
    feature_variance: Array
    """Squared deviation of a feature from its mean over sets, mean over features."""
    set_correlation: Array
    """Spearman's ρ of each predictor with being right, over sets of the same length and seed:
    (predictors, variants, seeds)."""
    chance: float | None = None
    """Accuracy of guessing; None in older results."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words("variants", self.variants)
        check_different("variants", self.variants)
        chance = self.chance
        if chance is not None and not (isinstance(chance, float) and 0 <= chance <= 1):
            raise ValueError(f"chance: got {chance!r}, accepted: a share from 0 to 1, or None")
        if self.conditions != CONDITIONS:
            raise ValueError(f"conditions: got {self.conditions!r}, accepted: {CONDITIONS!r}")
        shape = (len(self.variants), len(self.seeds), len(self.lengths))
        check_shape("accuracy", self.accuracy, (len(CONDITIONS), *shape))
        for name in PREDICTORS:
            check_shape(name, getattr(self, name), shape)
        check_shape("set_correlation", self.set_correlation, (len(PREDICTORS), *shape[:2]))
        for name, least in (("accuracy", 0), ("set_correlation", -1)):
            values = getattr(self, name)
            if ((values < least - 1e-9) | (values > 1 + 1e-9)).any():
                raise ValueError(f"{name} has values out of range, accepted: {least} to 1, or NaN")

    def command(self) -> None:  # type: ignore[override]
        """None: it is made from Python, by `explain_synthetic`."""
        return

    def to_frame(self) -> "pd.DataFrame":
        """A row for each variant, seed and length: accuracy under each change, and predictors."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [[self.task], self.variants, self.seeds, self.lengths],
            names=["task", "variant", "seed", "length"],
        )
        columns = {
            _column(name): values.ravel()
            for name, values in zip(self.conditions, self.accuracy, strict=True)
        }
        columns |= {name: getattr(self, name).ravel() for name in PREDICTORS}
        return pd.DataFrame(columns, index=index).reset_index()

    def summary_frame(self) -> "pd.DataFrame":
        """A row for each condition, variant and length: accuracy over seeds, 95 % t interval."""
        import pandas as pd

        rows = [
            (condition, variant, length, e.mean, e.low, e.high, e.n)
            for c, condition in enumerate(self.conditions)
            for v, variant in enumerate(self.variants)
            for n, length in enumerate(self.lengths)
            for e in [estimate(self.accuracy[c, v, :, n])]
        ]
        columns = ["condition", "variant", "length", "mean", "low", "high", "n_seeds"]
        return pd.DataFrame(rows, columns=columns)

    def repair_frame(self) -> "pd.DataFrame":
        """A row for each change, variant and length beyond training: accuracy minus that as it is.

        Paired over seeds: mean difference, 95 % t interval, p of the paired t test, `significant`
        after Holm's correction over the lengths. `repaired` is the share of what was lost since the
        longest training length, as it is there, that comes back; NaN where less than the margin
        was lost. `verdict` is of the claim that the change helps, “both at chance” where no seed is
        above guessing, with the change or without.
        """
        import pandas as pd

        margin, parts = self.margins.get("accuracy", 0), []
        reference = int(np.argmin(np.abs(np.array(self.lengths) - self.train_lengths[1])))
        plain = self.accuracy[0]
        low = np.zeros((len(self.conditions), len(self.variants), len(self.lengths)), dtype=bool)
        if self.chance is not None:
            low = np.stack([at_chance(one, self.chance, self.n_sets) for one in self.accuracy])
        for c, condition in list(enumerate(self.conditions))[1:]:
            for v, variant in enumerate(self.variants):
                rows = []
                sizes = [self.lengths.index(length) for length in self.beyond]
                for length, n in zip(self.beyond, sizes, strict=True):
                    e = estimate(self.accuracy[c, v, :, n] - plain[v, :, n])
                    lost = estimate(plain[v, :, reference] - plain[v, :, n]).mean
                    repaired = e.mean / lost if lost > margin else np.nan
                    found = (e.mean, e.low, e.high, e.n, repaired, paired_p(e))
                    rows.append((condition, variant, length, *found))
                guessed = (low[0] & low[c])[v, sizes]
                significant = holm([row[-1] for row in rows])
                for row, s, guess in zip(rows, significant, guessed, strict=True):
                    word = judge(*row[4:6], margin=margin, significant=bool(s), guessed=bool(guess))
                    parts.append((*row, bool(s), word))
        columns = ["condition", "variant", "length", "difference", "low", "high", "n_seeds"]
        return pd.DataFrame(parts, columns=[*columns, "repaired", "p", "significant", "verdict"])

    def key_frame(self) -> "pd.DataFrame":
        return self.repair_frame()

    def predictor_frame(self) -> "pd.DataFrame":
        """A row for each predictor, scope and variant: Spearman's ρ with being right.

        Scope `sets`: over sets of one network and length, mean over seeds with a 95 % t interval.
        Scope `networks`: of means over sets with accuracy, over all networks (variants and seeds)
        at the same length, with a jackknife interval over seeds, since the variants of a seed begin
        alike and may share weights; `variant` is then "all". Ranks are taken within lengths, since
        all of these fall with length. `n` counts seeds.
        """
        import pandas as pd

        rows = [
            ("sets", variant, name, e.mean, e.low, e.high, e.n)
            for p, name in enumerate(PREDICTORS)
            for v, variant in enumerate(self.variants)
            for e in [estimate(self.set_correlation[p, v])]
        ]
        of_networks = np.stack([getattr(self, name) for name in PREDICTORS], axis=-1)
        n_networks = len(self.variants) * len(self.seeds)
        found = correlate_ranks(
            self.accuracy[0].reshape(n_networks, -1),
            of_networks.reshape(n_networks, len(self.lengths), -1),
            units=np.tile(self.seeds, len(self.variants)),
        )
        for p, name in enumerate(PREDICTORS):
            rows.append(("networks", "all", name, *(x[p] for x in found), len(self.seeds)))
        columns = ["scope", "variant", "predictor", "rho", "low", "high", "n"]
        return pd.DataFrame(rows, columns=columns)

    def headline(self) -> str:
        n, first = len(self.seeds), self.variants[0]
        line = (
            f"{self.kind} {self.task}: {len(self.variants)} variant{'s' * (len(self.variants) > 1)}"
            f", lengths {self.lengths[0]}..{self.lengths[-1]}, {n} seed{'s' * (n > 1)}, "
            f"{self.duration}"
        )
        if not self.beyond:
            return line
        far, frame = self.beyond[-1], self.repair_frame()
        rows = frame[(frame.variant == first) & (frame.length == far)].to_dict("records")
        found = [f"{row['condition']} {_points(row)}" for row in rows[:3]]
        return f"{line}; accuracy of {first} at {far}, in points: {', '.join(found)}"

    def table(self, *, width: int | None = None) -> Any:
        """Accuracy under each change, by variant and length, and what predicts being right."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = []
        summary, repairs = self.summary_frame(), self.repair_frame()
        for variant in self.variants:
            parts += [_repair_table(variant, summary, repairs), Text()]
        about = (
            f"accuracy in %, mean over {count(summary.n_seeds, 'seed')}, "
            f"{count(self.n_sets, 'set')} per length; * the difference to “as is” is significant "
            f"after Holm's correction over the lengths; L = {self.train_lengths[1]}. Trained for "
            f"{self.settings}."
        )
        parts += [Text(about, style="italic"), Text(), _predictor_table(self.predictor_frame())]
        return Group(*parts)

    def remarks(self) -> list[str]:
        return [self.reading()]

    def reading(self) -> str:
        """Which change repairs accuracy at the longest sets, in sentences."""
        if not self.beyond:
            return "No set was larger than in training, so nothing was changed."
        far, frame = self.beyond[-1], self.repair_frame()
        margin = 100 * self.margins.get("accuracy", 0)
        found = []
        for variant in self.variants:
            rows = frame[(frame.variant == variant) & (frame.length == far)]
            words = [(row["verdict"], WORDS[row["condition"]]) for row in rows.to_dict("records")]
            sizes = ", ".join(f"{r['condition']} {_points(r)}" for r in rows.to_dict("records"))
            found.append(f"{variant}: “it repairs accuracy”: {spoken(words, 'for')} ({sizes}).")
        if (frame[frame.length == far].verdict == AT_CHANCE).any():
            found.append(NOTHING_COMPARED)
        return (
            f"At {far} items, in points: {' '.join(found)} "
            f"{explained(in_points(margin) if margin else '')} Trained for {self.settings}; "
            f"{len(self.seeds)} seeds."
        )

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "repairs": records(self.repair_frame()),
            "predictors": records(self.predictor_frame()),
            "reading": self.reading(),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import mechanism as figures

        if kind == "repair":
            return figures.draw_repair(self.summary_frame(), longest=self.train_lengths[1], ax=ax)
        return figures.draw_predictors(self.predictor_frame(), ax=ax)


def _column(condition: str) -> str:
    """Such as `accuracy_moments`; `accuracy` of the network as it is."""
    name = condition.replace(",", "").replace(" ", "_")
    return "accuracy" if condition == CONDITIONS[0] else f"accuracy_{name}"


def _points(row: Any) -> str:
    text = f"{100 * row['difference']:+.1f}"
    if not np.isnan(row["low"]):
        text += f" [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
    return minus(text)


def _repair_table(variant: str, summary: "pd.DataFrame", repairs: "pd.DataFrame") -> Any:
    """A row per length, a column per condition."""
    from rich.text import Text

    table = titled()
    table.add_column(Text(variant), justify="right", overflow="fold")
    for condition in CONDITIONS:
        table.add_column(condition.replace(" ", "\n"), justify="right")
    means = summary[summary.variant == variant].set_index(["length", "condition"])["mean"]
    stars = repairs[repairs.variant == variant].set_index(["length", "condition"]).significant
    for length in dict.fromkeys(summary.length):
        cells = [
            f"{100 * means[(length, name)]:.1f}{' *' * bool(stars.get((length, name), False))}"
            for name in CONDITIONS
        ]
        table.add_row(f"{length}", *cells)
    return table


def _predictor_table(frame: "pd.DataFrame") -> Any:
    from rich.text import Text

    table = titled(
        "Spearman's rank correlation with being right, within lengths: over the sets of a network "
        "(mean over seeds), and over networks"
    )
    for name in ("over", "variant", "predictor"):
        table.add_column(name, overflow="fold")
    for name in ("rho", "95 % CI"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        rho = "–" if np.isnan(row["rho"]) else minus(f"{row['rho']:+.2f}")
        names = row["scope"], Text(row["variant"]), row["predictor"].replace("_", " ")
        table.add_row(*names, rho, interval_cell(row, "[{:+.2f}, {:+.2f}]"))
    return table
