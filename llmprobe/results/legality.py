"""Results of decoders whose right answer is a set of tokens: what is still free, what is legal.

    result = load_result("runs/complement")
    result.beyond_frame()      # one number a seed for all lengths that training never saw, paired
    result.gap_frame()         # how fast the logits of allowed and other tokens come together
    result.plot("mass")

The target is uniform over the allowed tokens. As in `accuracy`, the seed is the unit: variants
share their seeds, so differences are paired, and a seed without finite numbers is not counted.
This module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmprobe.base.intervals import Estimate, estimate, fit_decay, holm, paired_p, verdict
from llmprobe.base.lengths import spread
from llmprobe.base.signs import minus
from llmprobe.results.base import check_shape, missing_as_nan, records
from llmprobe.results.tables import count, heading, interval_cell, mean_cell, p_cell, titled
from llmprobe.results.trained import (
    SCORES,
    Array,
    VariantsResult,
    check_score,
    check_target,
    check_whole,
    explained,
    in_points,
    spoken,
)
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd


METRICS = {
    "illegal_top1": "illegal top-1",
    "illegal_mass": "illegal mass",
    "kl": "KL divergence",
    "gap": "logit gap",
}
"""What is measured at each length, and its name in words; less is better for all but the gap."""
MARGINS = {"illegal_top1": 0.01, "illegal_mass": 0.01, "kl": 0.01, "gap": 0.0}
"""Of new runs, differences that do not matter: a point, or 0.01 nats. None is known for the gap,
so nothing is equivalent there."""
OTHER = {"entropy": "entropy of attention"}
"""What is measured besides, of which neither more nor less is better."""
N_ENTROPY = 256
"""Sequences whose attention is looked at."""
_MAX_LENGTHS = 12
"""Rows of the table by length."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalityResult(VariantsResult, kind="legality"):
    """How well variants know which tokens are allowed, by length, trained with the same seeds."""

    plots: ClassVar[dict[str, str]] = {
        "illegal": "illegal top-1 rate against length",
        "mass": "probability on illegal tokens against length",
        "kl": "KL divergence from the uniform target against length",
        "gap": "mean logit of allowed tokens minus that of the others against length",
        "entropy": "entropy of the attention weights against length",
    }

    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Illegal first choices",
            y="mean",
            low="low",
            high="high",
            axis="illegal top-1 rate, mean over seeds with 95 % CI",
            by="variant",
            x_axis="tokens or moves given",
            log_x=False,
            percent=True,
            frame="summary_frame",
        ),
        Lines(
            title="Difference to the first variant",
            y="difference",
            low="low",
            high="high",
            axis="illegal top-1 rate minus the first variant's, paired",
            by="variant",
            x_axis="tokens or moves given",
            log_x=False,
            percent=True,
            frame="compare_frame",
        ),
    )
    tests: ClassVar[str] = "n_sequences"

    n_sequences: tuple[int, ...]
    """Test sequences of a seed, one number per length: some games end early. Where seeds differ,
    the fewest."""
    vocab: int
    """Tokens to choose from."""
    target: str
    """What training's loss was taken against: one allowed token (sampled), or all (exact)."""
    kl: Array
    """KL divergence in nats from the target to the prediction, mean over sequences; (variants,
    seeds, lengths), like the next. NaN for a seed whose weights are not finite."""
    illegal_mass: Array
    """Probability on tokens that are not allowed, mean over sequences."""
    illegal_top1: Array
    """Share of sequences whose most likely token is not allowed."""
    gap: Array
    """Mean logit of allowed tokens minus that of the others, mean over sequences; NaN where all
    tokens are allowed, or none."""
    entropy: Array = missing_as_nan("variants", "seeds", "lengths")
    """Of the attention weights in nats, mean over layers, heads and sequences: (variants, seeds,
    lengths); NaN in results of older versions."""
    uniform_mass: Array
    """(lengths,): what a uniform guess puts on illegal tokens, that is chance; mean over seeds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target(self.target)
        check_whole("vocab", (self.vocab,), least=1)
        shape = (len(self.variants), len(self.seeds), len(self.lengths))
        for name in METRICS:
            check_shape(name, getattr(self, name), shape)
            check_score(name, getattr(self, name))
        check_shape("entropy", self.entropy, shape)
        check_shape("uniform_mass", self.uniform_mass, shape[2:])
        check_score("uniform_mass", self.uniform_mass)
        if np.isnan(self.uniform_mass).any():
            raise ValueError("uniform_mass has NaN, accepted: shares from 0 to 1")

    def to_frame(self) -> "pd.DataFrame":
        """A row for each variant, seed and length."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [[self.task], self.variants, self.seeds, self.lengths],
            names=["task", "variant", "seed", "length"],
        )
        columns = {name: getattr(self, name).ravel() for name in (*SCORES, *OTHER)}
        frame = pd.DataFrame(columns, index=index).reset_index()
        n_sequences = np.tile(self.n_sequences, len(self.variants) * len(self.seeds))
        frame.insert(4, "n_sequences", n_sequences)
        return frame

    def summary_frame(self, metric: str = "illegal_top1") -> "pd.DataFrame":
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

    def compare_frame(self, metric: str = "illegal_top1") -> "pd.DataFrame":
        """A row for each other variant and length: its metric minus the first variant's.

        Paired over seeds: mean difference, 95 % t interval, p of the paired t test, and whether it
        is significant after Holm's correction over the variant's lengths. Below 0 is better for
        all metrics but the gap. Where the differences do not vary there is no test: p is NaN.
        """
        import pandas as pd

        values, rows = self._values(metric), []
        for variant, own in list(zip(self.variants, values, strict=True))[1:]:
            found = [estimate(difference) for difference in (own - values[0]).T]
            p = [paired_p(e) for e in found]
            for length, e, one, s in zip(self.lengths, found, p, holm(p), strict=True):
                difference = (e.mean, e.low, e.high, one, s, e.n)
                rows.append((variant, self.variants[0], length, *difference))
        columns = ["variant", "reference", "length", "difference", "low", "high", "p"]
        return pd.DataFrame(rows, columns=[*columns, "significant", "n_seeds"])

    def beyond_frame(self) -> "pd.DataFrame":
        """A row for each metric and variant: one number a seed for all lengths beyond training.

        That number is the mean over `n_lengths` lengths; a length at which no seed has a number is
        not one of them. `mean` is over `n_seeds`, `difference` is to the first variant, over the
        `n_pairs` seeds that both have, with 95 % t intervals. p is of one paired t test, not
        corrected for the others. `verdict` is of the claim that the variant is better, by the
        interval and the run's margin; of the first variant it is empty. No rows where no length is
        beyond.
        """
        import pandas as pd

        rows = []
        for metric in METRICS if self.beyond else ():
            values, n_lengths = self._averages(metric, self.beyond)
            for variant, own, against in self._pairs(values):
                mean = (own.mean, own.low, own.high)
                difference = (against.mean, against.low, against.high, paired_p(against))
                claim = 1 if metric == "gap" else -1
                margin = self.margins.get(metric, 0)
                word = verdict(against.low, against.high, margin=margin, claim=claim)
                word = word if variant != self.variants[0] else ""
                found = (*mean, *difference, own.n, against.n, word)
                rows.append((metric, variant, n_lengths, *found))
        columns = ["metric", "variant", "n_lengths", "mean", "low", "high", "difference"]
        columns += ["difference_low", "difference_high", "p", "n_seeds", "n_pairs", "verdict"]
        return pd.DataFrame(rows, columns=columns)

    def key_frame(self) -> "pd.DataFrame":
        return self.beyond_frame() if self.beyond else self.summary_frame()

    def gap_frame(self) -> "pd.DataFrame":
        """A row for each variant: how fast the gap between the logits closes.

        `slope` is d log gap / d log length over all lengths that have a gap, least squares for
        each seed, then the mean over seeds with its 95 % t interval; the minimal model of attention
        has −1. A seed with a gap that is not positive has no slope and is not counted. Empty with
        under 2 lengths.
        """
        import pandas as pd

        known = np.flatnonzero(np.isfinite(self.gap).any(axis=(0, 1)))
        rows = []
        if len(known) > 1:
            fit = fit_decay([self.lengths[n] for n in known], self.gap[..., known])
            for variant, slopes in zip(self.variants, fit.slope, strict=True):
                e = estimate(slopes)
                rows.append((variant, e.mean, e.low, e.high, len(known), e.n))
        columns = ["variant", "slope", "low", "high", "n_lengths", "n_seeds"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def main_metric(self) -> str:
        """What tells networks apart: one attention loses mass long before its first choice errs."""
        return "illegal_top1" if self.task == "othello" else "illegal_mass"

    @property
    def default_plot(self) -> str:
        return "mass" if self.main_metric == "illegal_mass" else "illegal"

    def headline(self) -> str:
        n, n_seeds = len(self.variants), len(self.seeds)
        where = "beyond training" if self.beyond else f"at {self.lengths[-1]}"
        values, _ = self._averages(self.main_metric, self.beyond or self.lengths[-1:])
        (first, own, _), *others = self._pairs(100 * values)
        found = [f"{first} {own.mean:.1f} %"]
        for variant, _, d in others[:2]:
            interval = "" if np.isnan(d.low) else f" [{d.low:+.1f}, {d.high:+.1f}]"
            found.append(f"{variant} " + minus(f"{d.mean:+.1f} points{interval}"))
        more = f" and {n - 3} more" if n > 3 else ""
        return (
            f"{self.kind} {self.task}: {n} variant{'s' * (n > 1)}, "
            f"{self.lengths[0]}..{self.lengths[-1]} {self.unit} "
            f"(trained to {self.train_lengths[1]}), {n_seeds} seed{'s' * (n_seeds > 1)}, "
            f"{self.duration}; {METRICS[self.main_metric]} {where}: {', '.join(found)}{more}"
        )

    def table(self, *, width: int | None = None) -> Any:
        """The main metric by length, and each variant against the first one beyond training."""
        from rich.console import Group
        from rich.text import Text

        summary = self.summary_frame(self.main_metric)
        cells = {
            (row["variant"], row["length"]): mean_cell(100 * row["mean"], 100 * row["sd"])
            for row in summary.to_dict("records")
        }
        by_length = titled(f"{METRICS[self.main_metric]}, in %")
        by_length.add_column("given", justify="right", no_wrap=True)
        for variant in self.variants:
            by_length.add_column(heading(variant), justify="right")
        by_length.add_column("chance", justify="right")
        for length in spread(self.lengths, _MAX_LENGTHS):
            guess = 100 * self.uniform_mass[self.lengths.index(length)]
            row = (cells[variant, length] for variant in self.variants)
            by_length.add_row(f"{length}", *row, f"{guess:.0f}")
        about = (
            f"mean ± standard deviation over {count(summary.n_seeds, 'seed')}; "
            f"{count(self.n_sequences, 'sequence')} per length, {self.whose_tests}; trained on "
            f"{self.train_lengths[0]} to {self.train_lengths[1]} {self.unit} for {self.settings}"
        )
        parts: list[Any] = [by_length, Text(about, style="italic")]
        if len(beyond := self.beyond_frame()):
            parts += [Text(), self._beyond_table(beyond)]
        if self.task == "set-complement" and len(slopes := self.gap_frame()):
            parts += [Text(), _gap_table(slopes)]
        return Group(*parts)

    def remarks(self) -> list[str]:
        return [self.reading()] if self.beyond and len(self.variants) > 1 else []

    def reading(self) -> str:
        """For each variant, in which metrics “it is better than the first” is confirmed."""
        found = []
        for variant, rows in self.beyond_frame().groupby("variant", sort=False):
            if variant != self.variants[0]:
                words = [
                    (row["verdict"], METRICS[row["metric"]]) for row in rows.to_dict("records")
                ]
                claim = f"“{variant} is better than {self.variants[0]}”"
                found.append(f"{claim}: {spoken(words, 'for')}.")
        points, nats = (self.margins.get(metric, 0) for metric in ("illegal_top1", "kl"))
        margin = f"{in_points(100 * points)}, or {nats:g} nats of KL," if points or nats else ""
        return (
            f"Beyond training: {' '.join(found)} {explained(margin)} Trained for {self.settings}; "
            f"{len(self.seeds)} seeds."
        )

    def _beyond_table(self, frame: "pd.DataFrame") -> Any:
        """A row for each metric and variant: its mean beyond training, paired with the first."""
        from rich.text import Text

        table = titled(
            f"beyond training (more than {self.train_lengths[1]} {self.unit}): mean over "
            f"{count(frame.n_lengths, 'length')}, then over {count(frame.n_seeds, 'seed')}; paired "
            f"differences to {self.variants[0]} with 95 % CI and p, not corrected for multiple "
            "tests"
        )
        table.add_column("metric and variant", overflow="fold")
        for name in ("mean", "difference", "95 % CI", "p"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        metric = None
        for row in frame.to_dict("records"):
            scale = 100 if row["metric"].startswith("illegal") else 1
            if row["metric"] != metric:
                metric = row["metric"]
                table.add_row(METRICS[metric] + " (%)" * (scale > 1))
            ends = {"low": row["difference_low"], "high": row["difference_high"]}
            compared = not np.isnan(row["difference"])
            table.add_row(
                Text(f"  {row['variant']}"),
                f"{scale * row['mean']:.4g}",
                minus(f"{scale * row['difference']:+.3g}") if compared else "",
                interval_cell(ends, "[{:+.3g}, {:+.3g}]", scale=scale) if compared else "",
                p_cell(row["p"]) if compared else "",
                row["verdict"],
            )
        return table

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "comparisons": records(self.beyond_frame()),
            "gap": records(self.gap_frame()),
            "reading": " ".join(self.remarks()),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import legality as figures

        metric = {"illegal": "illegal_top1", "mass": "illegal_mass"}.get(kind, kind)
        shared: dict[str, Any] = {
            "name": (METRICS | OTHER)[metric],
            "given": f"{self.unit} given",
            "train_lengths": self.train_lengths,
            "n_sequences": self.n_sequences,
            "ax": ax,
        }
        if metric == "entropy":
            shared["n_sequences"] = [min(n, N_ENTROPY) for n in self.n_sequences]
        summary = self.summary_frame(metric)
        if metric == "gap":
            theory = self.task == "set-complement"  # elsewhere nothing says how it should fall
            return figures.draw_gap(summary, guide=theory, **shared)
        chance = None if metric in ("kl", "entropy") else self.uniform_mass
        return figures.draw_metric(summary, chance=chance, **shared)

    def _values(self, metric: str) -> Array:
        if metric not in METRICS | OTHER:
            raise ValueError(f"metric: got {metric!r}, accepted: {', '.join(METRICS | OTHER)}")
        values: Array = getattr(self, metric)
        return values

    def _averages(self, metric: str, lengths: tuple[int, ...]) -> tuple[Array, int]:
        """A metric's mean over lengths (variants, seeds), and how many of them have a number."""
        values = self._values(metric)[..., np.isin(self.lengths, lengths)]
        values = values[..., np.isfinite(values).any(axis=(0, 1))]
        n_lengths = values.shape[-1]
        return values.sum(axis=-1) / (n_lengths or np.nan), n_lengths

    def _pairs(self, values: Array) -> list[tuple[str, Estimate, Estimate]]:
        """Of one number a seed, for each variant: its mean, and its difference to the first's."""
        return [
            (variant, estimate(own), estimate(own - values[0] if number else []))
            for number, (variant, own) in enumerate(zip(self.variants, values, strict=True))
        ]


def _gap_table(frame: "pd.DataFrame") -> Any:
    from rich.text import Text

    table = titled("slope of log gap over log s; dispersion of a balanced displacement gives −1")
    table.add_column("variant", overflow="fold")
    for name in ("slope", "95 % CI", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        interval = interval_cell(row, "{:+.3f} to {:+.3f}")
        slope = minus(f"{row['slope']:+.3f}")
        table.add_row(Text(row["variant"]), slope, interval, f"{row['n_seeds']}")
    return table
