"""The result of a random search over sets: does a norm help, in how many settings, and in which?

    result = load_result("runs/search")
    result.effect_frame()        # each norm at each multiple of the training length, paired
    result.correlation_frame()   # each setting against the effect of each norm
    result.tree_frame()          # groups of settings in which the effects differ
    result.reading()             # what was confirmed, in words

A setting is one draw of steps, rates, shape and training lengths. It is trained as it is and again
with each compared part from the same seed, so an effect is a difference within a setting. The
setting is the unit of observation: every interval and every test is over settings. Where a part is
no other network than one without it, or none at all, there are no numbers (NaN). This module needs
no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmprobe.base.intervals import estimate, holm, rank_correlation, signed_rank_p
from llmprobe.base.signs import minus
from llmprobe.base.trees import grow_tree
from llmprobe.results.base import check_shape, records
from llmprobe.results.set_search_tables import (
    correlation_table,
    drawn_from,
    effect_table,
    tree_table,
)
from llmprobe.results.solved import AT_CHANCE, NOTHING_COMPARED, at_chance, judge
from llmprobe.results.tables import count
from llmprobe.results.trained import (
    Array,
    Integers,
    TrainedResult,
    check_different,
    check_whole,
    check_words,
    explained,
    in_points,
    spoken,
)
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd


PARAMETERS = (
    *("n_steps", "learning_rate", "cosine", "weight_decay", "width", "heads", "mlp_layers"),
    *("longest", "projection", "residual"),
)
"""What a setting consists of; all but the two rates are whole numbers."""
_RATES = ("learning_rate", "weight_decay")
_FROM_0 = ("cosine", "projection", "residual")
"""No or yes."""
MEASURED = ("accuracy", "entropy", "global_variance", "feature_variance")
MARGINS = {"accuracy": 0.01}
"""Of new runs: differences of less than a point do not matter."""
_DECIMALS = 12
"""Of differences, so that those which differ only by rounding are ties."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SetSearchResult(TrainedResult, kind="set-search"):
    """Accuracy of random settings, as they are and with each compared part."""

    plots: ClassVar[dict[str, str]] = {
        "effects": "paired difference of accuracy against length, for each part",
        "settings": "rank correlation of each setting with each part's effect",
    }
    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Effect of each part beyond the training length",
            y="difference",
            low="low",
            high="high",
            axis="difference in accuracy, mean over settings with 95 % CI",
            by="variant",
            x="times",
            x_axis="set size / longest training size",
            percent=True,
            frame="effect_frame",
        ),
    )
    by_length: ClassVar[tuple[str, ...]] = MEASURED
    tests: ClassVar[str] = "n_sets"
    lists: ClassVar[tuple[str, ...]] = (*TrainedResult.lists, "variants")
    drawn: ClassVar[tuple[str, ...]] = ("train_lengths",)

    variants: tuple[str, ...]
    """The parts that were compared. `lengths` of this kind are multiples of a setting's longest
    training length, and `train_lengths` are 1 and 1; `steps` are the most that were drawn."""
    n_sets: tuple[int, ...]
    """Test sets, one number per length."""
    chance: float
    """Accuracy of guessing."""
    ranges: Mapping[str, str]
    """What each setting was drawn from, in words."""
    n_steps: Integers
    """(settings,), like the next."""
    learning_rate: Array
    cosine: Integers
    """1 where the learning rate falls to 0, 0 where it is constant."""
    weight_decay: Array
    width: Integers
    heads: Integers
    mlp_layers: Integers
    longest: Integers
    """The longest training length; the shortest is a third of it."""
    projection: Integers
    """1 where there is W_O."""
    residual: Integers
    """1 where the query is added to the attention output."""
    accuracy: Array
    """Share of right answers: (settings, 1 + variants, lengths), like the next; the first without
    any part. NaN where a part does not apply, or weights are not finite."""
    entropy: Array
    """Of the attention weights in nats, mean over sets and heads."""
    global_variance: Array
    """Variance over features of what the reading MLP is given, averaged over sets."""
    feature_variance: Array
    """Variance over sets of one feature of it, averaged over features."""
    diverged: Integers
    """(settings, 1 + variants): the step from which the loss was not finite, or the last one where
    it ended no better than guessing; −1 where all went well, or nothing was trained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ranges", dict(self.ranges))
        check_words("variants", self.variants)
        check_different("variants", self.variants)
        check_words("ranges", (*self.ranges, *self.ranges.values()))
        if missing := [name for name in PARAMETERS if name not in self.ranges]:
            raise ValueError(f"ranges: got none for {', '.join(missing)}, accepted: one for each")
        if not isinstance(self.chance, float) or not 0 <= self.chance <= 1:
            raise ValueError(f"chance: got {self.chance!r}, accepted: a share from 0 to 1")
        shape = (len(self.seeds), 1 + len(self.variants))
        for name in MEASURED:
            check_shape(name, getattr(self, name), (*shape, len(self.lengths)))
        check_shape("diverged", self.diverged, shape)
        known = self.accuracy[~np.isnan(self.accuracy)]
        if ((known < 0) | (known > 1)).any():
            raise ValueError("accuracy has values out of range, accepted: 0 to 1, or NaN")
        for name in PARAMETERS:
            self._check_parameter(name)

    def _check_parameter(self, name: str) -> None:
        given = getattr(self, name)
        check_shape(name, given, (len(self.seeds),))
        if name in _RATES:
            if not (np.isfinite(given) & (given > 0)).all():
                raise ValueError(f"{name} has values out of range, accepted: positive numbers")
            return
        check_whole(name, tuple(given.tolist()), least=0 if name in _FROM_0 else 1)
        if name in _FROM_0 and (given > 1).any():
            raise ValueError(f"{name} has values out of range, accepted: 0 or 1")

    @property
    def settings(self) -> str:
        clip = self._argument("clip")
        word = "" if clip is None else f", gradients clipped at {clip:g}"
        word = ", gradients not clipped" if clip == 0 else word
        return f"{self.ranges['n_steps'].partition(',')[0]} steps{word}"

    def to_frame(self) -> "pd.DataFrame":
        """A row for each setting, variant and multiple; only those that were trained."""
        import pandas as pd

        names = ("baseline", *self.variants)
        index = pd.MultiIndex.from_product(
            [range(len(self.seeds)), range(len(names)), range(len(self.lengths))],
            names=["setting", "variant", "times"],
        )
        frame = index.to_frame(index=False)
        setting, variant, times = (frame[name].to_numpy() for name in frame)
        frame.insert(1, "seed", np.array(self.seeds)[setting])
        for place, name in enumerate(PARAMETERS, start=2):
            frame.insert(place, name, getattr(self, name)[setting])
        frame["variant"] = np.array(names)[variant]
        frame["times"] = np.array(self.lengths)[times]
        frame["length"] = frame.times * frame.longest
        frame["diverged"] = self.diverged[setting, variant]
        frame = frame.assign(**{name: getattr(self, name).ravel() for name in MEASURED})
        return frame[frame.accuracy.notna()].reset_index(drop=True)

    def pairs_frame(self) -> "pd.DataFrame":
        """A row for each part, multiple and setting: accuracy without it, with it, and the change.

        NaN where one of the two is not known.
        """
        import pandas as pd

        parts = []
        for v, variant in enumerate(self.variants, start=1):
            for n, times in enumerate(self.lengths):
                before, after = self.accuracy[:, 0, n], self.accuracy[:, v, n]
                columns = {"variant": variant, "times": times, "setting": range(len(self.seeds))}
                found = {"without": before, "with": after}
                change = {"change": np.round(after - before, _DECIMALS)}
                parts.append(pd.DataFrame(columns | found | change))
        return pd.concat(parts, ignore_index=True)

    def effect_frame(self) -> "pd.DataFrame":
        """A row for each part and multiple: its effect on accuracy, paired within settings.

        `difference` is the mean over settings with a 95 % t interval; `helps` the share of settings
        in which accuracy is higher, a tie counted half; `better` and `worse` count those whose
        accuracy changes by more than the margin. `p` is of Wilcoxon's signed-rank test, NaN with
        under 6 settings or where all are ties; `significant` is Holm's over the part's multiples.
        `verdict` is of the claim that the part helps, “both at chance” where none of these settings
        is above guessing, with the part or without.
        """
        import pandas as pd

        margin, parts = self.margins.get("accuracy", 0), []
        after = self.accuracy[:, 1:].swapaxes(0, 1)
        before = np.where(np.isnan(after), np.nan, self.accuracy[:, 0])  # where a part applies
        low = (at_chance(scores, self.chance, self.n_sets) for scores in (before, after))
        guessed = np.logical_and(*low)
        by_part = self.pairs_frame().groupby("variant", sort=False)
        for (variant, of_part), at_guess in zip(by_part, guessed, strict=True):
            rows = []
            for times, part in of_part.groupby("times", sort=False):
                change = part.change.dropna().to_numpy()
                e = estimate(change)
                helps = ((1 + np.sign(change)) / 2).mean() if e.n else np.nan
                counts = (int((change > margin).sum()), int((change < -margin).sum()))
                found = (e.mean, e.low, e.high, helps, *counts, signed_rank_p(change))
                rows.append((variant, times, e.n, *found))
            significant = holm([row[-1] for row in rows])
            for row, s, guess in zip(rows, significant, at_guess, strict=True):
                word = judge(*row[4:6], margin=margin, significant=bool(s), guessed=bool(guess))
                parts.append((*row, bool(s), word))
        columns = ["variant", "times", "n_settings", "difference", "low", "high", "helps"]
        columns += ["better", "worse", "p", "significant", "verdict"]
        return pd.DataFrame(parts, columns=columns)

    def key_frame(self) -> "pd.DataFrame":
        return self.effect_frame()

    def correlation_frame(self) -> "pd.DataFrame":
        """A row for each part and setting: Spearman's ρ with the part's effect, over settings.

        The effect is the mean change of accuracy beyond the training lengths. The 95 % interval is
        the percentile interval of 2000 resamples of settings; `significant` is Holm's over the
        part's rows. NaN where the setting does not vary, or with under 6 settings.
        """
        import pandas as pd

        parts = []
        for variant in self.variants:
            known, change = self._effects(variant)
            rows = [
                (variant, name, *rank_correlation(getattr(self, name)[known], change), len(change))
                for name in PARAMETERS
            ]
            significant = holm([row[5] for row in rows])
            parts += [(*row, bool(s)) for row, s in zip(rows, significant, strict=True)]
        columns = ["variant", "parameter", "rho", "low", "high", "p", "n_settings", "significant"]
        return pd.DataFrame(parts, columns=columns)

    def tree_frame(self) -> "pd.DataFrame":
        """A row for each part and group of settings in which its effect differs from the others'.

        Groups come from splits at one value of one setting, at most two after one another, each
        only where a permutation test over all possible splits is significant (`p`, of the last).
        A part with one row, all settings, is one that no setting decides. Intervals are those of
        the group alone: since groups were chosen by their means, they are somewhat too narrow.
        """
        import pandas as pd

        rows = []
        for variant in self.variants:
            known, change = self._effects(variant)
            if not len(change):
                continue
            columns = [getattr(self, name)[known].astype(np.float64) for name in PARAMETERS]
            for leaf in grow_tree(np.stack(columns, axis=1), change):
                words = [f"{PARAMETERS[c]} {sign} {value:.3g}" for c, sign, value in leaf.rules]
                e = estimate(change[leaf.members])
                where = " and ".join(words) or "all settings"
                rows.append((variant, where, e.n, e.mean, e.low, e.high, leaf.p))
        names = ["variant", "settings", "n_settings", "difference", "low", "high", "p"]
        return pd.DataFrame(rows, columns=names)

    def headline(self) -> str:
        n, effects = len(self.seeds), self.effect_frame()
        last = effects[effects.times == self.lengths[-1]]
        found = [
            minus(f"{name} {100 * mean:+.1f}")
            + ("" if np.isnan(low) else minus(f" [{100 * low:+.1f}, {100 * high:+.1f}]"))
            for name, mean, low, high in zip(
                last.variant, last.difference, last.low, last.high, strict=True
            )
        ]
        more = f" and {len(found) - 2} more" if len(found) > 2 else ""
        return (
            f"{self.kind} {self.task}: {n} setting{'s' * (n > 1)}, to {self.lengths[-1]} times the "
            f"training length, up to {self.duration}; accuracy with a part minus without, in "
            f"points: {', '.join(found[:2])}{more}"
        )

    def table(self, *, width: int | None = None) -> Any:
        """The paired effects, which settings decide, and the rank correlations."""
        from rich.console import Group
        from rich.text import Text

        about = Text(
            f"{count(self.n_sets, 'set')} per length, {self.whose_tests}; trained for "
            f"{self.settings}",
            style="italic",
        )
        return Group(
            effect_table(self.effect_frame()),
            about,
            Text(),
            tree_table(self.tree_frame()),
            Text(),
            correlation_table(self.correlation_frame()),
            drawn_from(self.ranges),
        )

    def remarks(self) -> list[str]:
        return [self.reading()]

    def reading(self) -> str:
        """For each part, at which multiples of the training length it helps, in sentences."""
        effects, found = self.effect_frame(), []
        for variant, rows in effects.groupby("variant", sort=False):
            words = [(row["verdict"], f"{row['times']}") for row in rows.to_dict("records")]
            last = rows.iloc[-1]
            found.append(
                f"“{variant} helps”: {spoken(words, 'at')} times the training length; at "
                f"{last.times} in {last.better} of {last.n_settings} settings by more than the "
                f"margin, in {last.worse} it hurts."
            )
        if (effects.verdict == AT_CHANCE).any():
            found.append(NOTHING_COMPARED)
        margin = 100 * self.margins.get("accuracy", 0)
        return (
            f"{' '.join(found)} {explained(in_points(margin) if margin else '')} Wilcoxon's test "
            f"over settings, Holm's correction over a part's lengths. Trained for {self.settings}."
        )

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "effects": records(self.effect_frame()),
            "correlations": records(self.correlation_frame()),
            "tree": records(self.tree_frame()),
            "reading": self.reading(),
            "ranges": dict(self.ranges),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import set_search as figures

        if kind == "effects":
            return figures.draw_effects(self.pairs_frame(), self.effect_frame(), ax=ax)
        return figures.draw_correlations(self.correlation_frame(), ax=ax)

    def _effects(self, variant: str) -> tuple[Any, Array]:
        """Of which settings the effect beyond training is known, and that effect."""
        beyond = np.array(self.lengths) > self.train_lengths[1]
        chosen = beyond if beyond.any() else slice(None)
        accuracy = self.accuracy[..., chosen].mean(axis=-1)
        change = accuracy[:, 1 + self.variants.index(variant)] - accuracy[:, 0]
        known = np.isfinite(change)
        return known, np.round(change[known], _DECIMALS)
