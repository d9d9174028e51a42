"""The result of a random search: does dropout help, and does averaging, whatever the setting?

    result = load_result("runs/search")
    result.effect_frame()        # dropout, EMA and BEMA, paired within settings
    result.correlation_frame()   # each hyper-parameter against its outcome
    result.reading()             # what was confirmed, in words

A setting is one draw of learning rate, dropout rate, decay of the EMA, width and depth. It is
trained twice from one seed, without dropout and with it, and each training is evaluated three
times: its weights, their EMA, their BEMA. The setting is the unit of observation: every interval
and every test is over settings. Outcomes are means over the lengths beyond training, or over all
where none is beyond. A setting whose numbers are not finite is left out and not counted. This
module needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from llmprobe.base.intervals import (
    estimate,
    geometric_estimate,
    holm,
    log_positive,
    positive_ratio,
    rank_correlation,
    signed_rank_p,
    verdict,
)
from llmprobe.base.signs import minus
from llmprobe.results.base import check_shape, records
from llmprobe.results.tables import count, interval_cell, p_cell, titled
from llmprobe.results.trained import (
    SCORES,
    Array,
    Integers,
    TrainedResult,
    check_score,
    check_target,
    check_whole,
    check_words,
    explained,
    spoken,
)

if TYPE_CHECKING:
    import pandas as pd


WEIGHTS = ("raw", "ema", "bema")
OUTCOMES = {
    "learning_rate": "raw weights without dropout",
    "dropout": "dropout, raw weights",
    "ema_decay": "ema, without dropout",
    "width": "raw weights without dropout",
    "depth": "raw weights without dropout",
}
"""Each hyper-parameter with the outcome that it is held against. The strength of a remedy is held
against its paired effect, named as in `pairs_frame`: its outcome alone would also vary with all
that makes a setting good or bad."""
MARGINS = {"kl": 0.02, "illegal_mass": 0.02, "illegal_top1": 0.01, "gap": 0.0}
"""Of new runs, changes that do not matter: a ratio within 2 %, a difference of a point. None is
known for the gap, so nothing is equivalent there."""
_TWINS = ("without dropout", "with dropout")
_RATIOS = ("kl", "illegal_mass")
"""Compared by ratios; the others by differences, since they can be 0."""
_DECIMALS = 12
"""Of differences, so that those which differ only by rounding are ties."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SearchResult(TrainedResult, kind="search"):
    """Outcomes of random settings by length, without dropout and with it, averaged or not."""

    plots: ClassVar[dict[str, str]] = {
        "effects": "each setting's paired ratio, with the mean and its interval",
        "settings": "outcome against each hyper-parameter",
    }
    by_length: ClassVar[tuple[str, ...]] = SCORES
    tests: ClassVar[str] = "n_sequences"
    lists: ClassVar[tuple[str, ...]] = (*TrainedResult.lists, "weights")

    n_sequences: tuple[int, ...]
    """Test sequences, one number per length."""
    vocab: int
    target: str
    """What training's loss was taken against: one allowed token (sampled), or all (exact)."""
    ranges: Mapping[str, str]
    """What each hyper-parameter was drawn from, in words."""
    weights: tuple[str, ...] = WEIGHTS
    """The first are the reference of the others."""
    learning_rate: Array
    """(settings,), like the next."""
    dropout: Array
    """The rate of the twin that has dropout."""
    ema_decay: Array
    width: Integers
    depth: Integers
    kl: Array
    """KL divergence in nats from the target to the prediction, mean over sequences: (settings,
    without and with dropout, weights, lengths), like the next. NaN where the weights of a training
    are not finite."""
    illegal_mass: Array
    """Probability on tokens that are not allowed, mean over sequences."""
    illegal_top1: Array
    """Share of sequences whose most likely token is not allowed."""
    gap: Array
    """Mean logit of allowed tokens minus that of the others, mean over sequences; the only one of
    which more is better. NaN also where all tokens are allowed, or none."""
    diverged: Integers
    """(settings, without and with dropout): the step from which the loss was not finite, or the
    last one where it ended no better than guessing; −1 where all went well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ranges", dict(self.ranges))
        self._check_words()
        check_target(self.target)
        check_whole("vocab", (self.vocab,), least=1)
        n = len(self.seeds)
        for name in OUTCOMES:
            check_shape(name, getattr(self, name), (n,))
        for name in self.by_length:
            check_shape(name, getattr(self, name), (n, 2, len(self.weights), len(self.lengths)))
            check_score(name, getattr(self, name))
        check_shape("diverged", self.diverged, (n, 2))
        self._check_ranges()

    def _check_words(self) -> None:
        check_words("ranges", (*self.ranges, *self.ranges.values()))
        if self.weights != WEIGHTS:
            raise ValueError(f"weights: got {self.weights!r}, accepted: {WEIGHTS!r}")
        if missing := [name for name in OUTCOMES if name not in self.ranges]:
            raise ValueError(f"ranges: got none for {', '.join(missing)}, accepted: one for each")

    def _check_ranges(self) -> None:
        for name, least in (("width", 1), ("depth", 1), ("diverged", -1)):
            given = getattr(self, name)
            if given.dtype.kind != "i" or (given < least).any():
                raise ValueError(f"{name} has values out of range, accepted: integers from {least}")
        rate, dropout, decay = self.learning_rate, self.dropout, self.ema_decay
        fits = {
            "learning_rate": (np.isfinite(rate) & (rate > 0), "positive numbers"),
            "dropout": ((dropout > 0) & (dropout < 1), "above 0 and below 1"),
            "ema_decay": ((decay >= 0) & (decay < 1), "from 0 to below 1"),
        }
        for name, (fit, accepted) in fits.items():
            if not fit.all():
                raise ValueError(f"{name} has values out of range, accepted: {accepted}")

    @property
    def region(self) -> str:
        """The lengths that outcomes are means over, in words."""
        return "beyond training" if self._beyond().any() else "at all lengths"

    def to_frame(self) -> "pd.DataFrame":
        """A row for each setting, without and with dropout, and its weights."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [range(len(self.seeds)), [0, 1], self.weights], names=["setting", "twin", "weights"]
        )
        frame = index.to_frame(index=False)
        setting, twin = frame.setting.to_numpy(), frame.pop("twin").to_numpy()
        frame.insert(1, "seed", np.array(self.seeds)[setting])
        for place, name in enumerate(OUTCOMES, start=2):
            frame.insert(place, name, getattr(self, name)[setting])
        frame["dropout"] *= twin
        frame["diverged"] = self.diverged[setting, twin]
        return frame.assign(**{name: self._outcome(name).ravel() for name in self.by_length})

    def pairs_frame(self, metric: str = "kl") -> "pd.DataFrame":
        """A row for each comparison and setting: its outcome with the effect and without.

        `change` is their ratio (kl, illegal_mass) or their difference (illegal_top1, gap), NaN
        where one of them is not finite, or is 0 in a ratio.
        """
        import pandas as pd

        outcome = self._outcome(metric)
        pairs = [
            ("dropout", f"{name} weights", outcome[:, 0, w], outcome[:, 1, w])
            for w, name in enumerate(self.weights)
        ] + [
            (name, twin, outcome[:, t, 0], outcome[:, t, w])
            for t, twin in enumerate(_TWINS)
            for w, name in enumerate(self.weights[1:], start=1)
        ]
        ratio = metric in _RATIOS
        parts = []
        for effect, where, before, after in pairs:
            columns = {"effect": effect, "where": where, "setting": range(len(self.seeds))}
            change = positive_ratio(after, before) if ratio else np.round(after - before, _DECIMALS)
            found = {"without": before, "with": after, "change": change}
            scale = "ratio" if ratio else "difference"
            parts.append(pd.DataFrame(columns | found | {"scale": scale}))
        return pd.concat(parts, ignore_index=True)

    def effect_frame(self, metric: str = "kl") -> "pd.DataFrame":
        """A row for each of the seven comparisons, paired within settings.

        `effect_size` is the geometric mean over settings of the ratios, or the mean of the
        differences, with a 95 % t interval (of the logarithms). `helps` is the share of settings
        in which it is better, a tie counted half. `p` is of Wilcoxon's signed-rank test, NaN with
        under 6 settings or where all are ties; `significant` is Holm's over the seven. `verdict`
        is of the claim that the effect helps, with the run's margin.
        """
        import pandas as pd

        pairs = self.pairs_frame(metric)
        ratio, sign = metric in _RATIOS, 1 if metric == "gap" else -1
        rows = []
        for (effect, where), part in pairs.groupby(["effect", "where"], sort=False):
            change = part.change.dropna().to_numpy()
            e = geometric_estimate(change) if ratio else estimate(change)
            change = log_positive(change) if ratio else change
            better = (1 + np.sign(sign * change)) / 2
            found = (e.mean, e.low, e.high, part.scale.iloc[0], better.mean() if e.n else np.nan)
            rows.append((effect, where, e.n, *found, signed_rank_p(change)))
        columns = ["effect", "where", "n_settings", "effect_size", "low", "high", "scale"]
        frame = pd.DataFrame(rows, columns=[*columns, "helps", "p"])
        significant = holm(frame.p)
        margin = self.margins.get(metric, 0)
        margin = float(np.log1p(margin)) if ratio else margin
        ends = frame[["low", "high"]].to_numpy()
        words = [
            verdict(low, high, margin=margin, claim=sign, significant=bool(s))
            for (low, high), s in zip(
                log_positive(ends) if ratio else ends, significant, strict=True
            )
        ]
        return frame.assign(significant=significant, verdict=words)

    def key_frame(self) -> "pd.DataFrame":
        return self.effect_frame()

    def scatter_frame(self, metric: str = "kl") -> "pd.DataFrame":
        """A row for each hyper-parameter and setting: its value and the outcome it is held against.

        That is the metric of raw weights without dropout (`scale` is "value"). The dropout rate is
        held against dropout's paired effect on raw weights, and the decay against the EMA's without
        dropout: `scale` is then "ratio" or "difference", as in `pairs_frame`.
        """
        import pandas as pd

        plain = self._outcome(metric)[:, 0, 0]
        pairs = self.pairs_frame(metric)
        pairs["outcome"] = pairs.effect + ", " + pairs["where"]
        parts = []
        for parameter, outcome in OUTCOMES.items():
            pair = pairs[pairs.outcome == outcome]
            paired = len(pair) > 0
            columns = {"parameter": parameter, "outcome": outcome}
            value = getattr(self, parameter).astype(np.float64)
            setting = {"setting": range(len(self.seeds)), "value": value}
            found = {metric: pair.change.to_numpy() if paired else plain}
            scale = {"scale": pair.scale.iloc[0] if paired else "value"}
            parts.append(pd.DataFrame(columns | setting | found | scale))
        return pd.concat(parts, ignore_index=True)

    def correlation_frame(self, metric: str = "kl") -> "pd.DataFrame":
        """A row for each hyper-parameter: Spearman's ρ with its outcome, over settings.

        For the dropout rate and the decay of the EMA that is their paired effect.
        The 95 % interval is the percentile interval of 2000 resamples of settings. NaN where the
        parameter or the outcome does not vary, or with under 6 settings.
        """
        import pandas as pd

        rows = []
        for (parameter, outcome), part in self.scatter_frame(metric).groupby(
            ["parameter", "outcome"], sort=False
        ):
            known = part[part[metric].notna()]
            found = rank_correlation(known.value.to_numpy(), known[metric].to_numpy())
            rows.append((parameter, outcome, *found, len(known)))
        columns = ["parameter", "outcome", "rho", "low", "high", "p", "n_settings"]
        return pd.DataFrame(rows, columns=columns)

    def best(self, metric: str = "kl", n: int = 5) -> "pd.DataFrame":
        """The n best rows of `to_frame()`."""
        self._check_metric(metric)
        frame = self.to_frame()
        known = frame[frame[metric].notna()]
        ordered = known.sort_values(metric, ascending=metric != "gap", kind="stable")
        return ordered.head(n).reset_index(drop=True)

    def headline(self) -> str:
        n, effects = len(self.seeds), self.effect_frame()
        shown = effects[effects["where"].isin([f"{WEIGHTS[0]} weights", _TWINS[0]])]
        found = [
            f"{effect} ×{size:.2f}" + ("" if np.isnan(low) else f" [{low:.2f}, {high:.2f}]")
            for effect, size, low, high in zip(
                shown.effect, shown.effect_size, shown.low, shown.high, strict=True
            )
        ]
        return (
            f"{self.kind} {self.task}: {n} setting{'s' * (n > 1)}, {self.lengths[0]}.."
            f"{self.lengths[-1]} {self.unit} (trained to {self.train_lengths[1]}), "
            f"{self.duration}; KL {self.region}: {', '.join(found)}"
        )

    def table(self, *, width: int | None = None) -> Any:
        """The paired effects and the rank correlations."""
        from rich.console import Group
        from rich.text import Text

        found = self.effect_frame()
        effects = titled(
            f"KL {self.region}, with / without: geometric mean over "
            f"{count(found.n_settings, 'setting')}, 95 % CI, share of settings that improve, p of "
            "Wilcoxon's test (* significant after Holm's correction)"
        )
        for name in ("effect", "in"):
            effects.add_column(name)
        for name in ("ratio", "95 % CI", "helps", "p"):
            effects.add_column(name, justify="right", no_wrap=True)
        effects.add_column("verdict", no_wrap=True)
        for row in found.to_dict("records"):
            effects.add_row(
                escape(row["effect"]),
                escape(row["where"]),
                f"{row['effect_size']:.3f}",
                interval_cell(row, "{:.3f} to {:.3f}"),
                f"{row['helps']:.0%}",
                p_cell(row["p"], significant=row["significant"]),
                row["verdict"],
            )
        about = Text(
            f"{count(self.n_sequences, 'sequence')} per length, {self.whose_tests}; trained on "
            f"{self.train_lengths[0]} to {self.train_lengths[1]} {self.unit} for {self.settings}",
            style="italic",
        )
        correlations = self.correlation_frame()
        ranks = titled(
            "Spearman's rank correlation with KL, or with the ratio of KL that a remedy gives, and "
            f"its bootstrap CI over {count(correlations.n_settings, 'setting')}"
        )
        for name in ("parameter", "drawn from", "KL or ratio of"):
            ranks.add_column(name)
        for name in ("rho", "95 % CI", "p"):
            ranks.add_column(name, justify="right", no_wrap=True)
        for row in correlations.to_dict("records"):
            drawn = Text(self.ranges[row["parameter"]])
            interval = interval_cell(row, "{:+.2f} to {:+.2f}")
            rho = "–" if np.isnan(row["rho"]) else minus(f"{row['rho']:+.2f}")
            names = escape(row["parameter"]), drawn, escape(row["outcome"])
            ranks.add_row(*names, rho, interval, p_cell(row["p"]))
        return Group(effects, about, Text(), ranks)

    def remarks(self) -> list[str]:
        return [self.reading()]

    def reading(self) -> str:
        """Whether dropout and averaging help, in sentences."""
        effects = self.effect_frame()
        is_dropout = effects.effect == "dropout"
        n = sorted({effects.n_settings.min(), effects.n_settings.max()})
        margin = self.margins.get("kl", 0)
        return (
            f"With a {self.schedule} learning rate, “dropout helps”: "
            f"{_verdicts(effects[is_dropout])}. "
            f"“Averaging helps”: {_verdicts(effects[~is_dropout])}. "
            f"By the logarithm of the ratio of KL {self.region}, over settings (n = "
            f"{' to '.join(map(str, n))}), and Wilcoxon's test with Holm's correction over "
            f"{len(effects)} comparisons. {explained(f'{100 * margin:g} %' if margin else '')} "
            f"Trained for {self.settings}."
        )

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "effects": records(self.effect_frame()),
            "correlations": records(self.correlation_frame()),
            "reading": self.reading(),
            "ranges": dict(self.ranges),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import search as figures

        outcome = f"KL {self.region}"
        if kind == "effects":
            pairs, effects = self.pairs_frame(), self.effect_frame()
            return figures.draw_effects(pairs, effects, outcome=outcome, ax=ax)
        frame, correlations = self.scatter_frame(), self.correlation_frame()
        return figures.draw_settings(frame, correlations, outcome=outcome, ax=ax)

    def _beyond(self) -> NDArray[np.bool_]:
        return np.array(self.lengths) > self.train_lengths[1]

    def _outcome(self, metric: str) -> Array:
        """(settings, without and with dropout, weights)"""
        self._check_metric(metric)
        beyond = self._beyond()
        values: Array = getattr(self, metric)[..., beyond if beyond.any() else slice(None)]
        known = ~np.isnan(values).all(axis=(0, 1, 2))  # where all tokens are allowed is no gap
        means = values[..., known if known.any() else slice(None)].mean(axis=-1)
        return np.where(np.isfinite(means), means, np.nan)

    def _check_metric(self, metric: str) -> None:
        if metric not in self.by_length:
            raise ValueError(f"metric: got {metric!r}, accepted: {', '.join(self.by_length)}")


def _verdicts(effects: "pd.DataFrame") -> str:
    """Such as: confirmed for raw weights and ema weights, undecided for bema weights."""
    return spoken(
        (
            (
                row["verdict"],
                row["where"] if row["effect"] == "dropout" else f"{row['effect']} {row['where']}",
            )
            for row in effects.to_dict("records")
        ),
        "for",
    )
