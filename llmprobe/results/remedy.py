"""What remedies change: the loss by length, key tokens, answers, and slopes of the variance.

result = load_result("runs/remedy-llama")
result.to_frame(), result.slope_frame(), result.reading(), result.plot("doses")
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS
from llmprobe.results.base import Result, check_shape, command_line, records
from llmprobe.results.tables import count, p_cell, titled
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MEASURES = {
    "loss": "nats per token between consecutive lengths",
    "key_loss": "nats per key token",
    "dictionary": "share of right answers to dictionary prompts",
    "repeat": "share of right tokens in a repeated passage",
}
"""What is measured: losses, of which less is better, and shares of right answers."""
_SHARES = ("dictionary", "repeat")
ARMS = ("remedy", "shuffled", "norm kept")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RemedyResult(Result, kind="remedy"):
    """Each remedy and dose against the untreated model on the same prompts, next to its shams.

    Arrays have the axes (measures, treatments, lengths); a treatment is a remedy at a dose, or a
    sham of it. NaN where a measure was not taken.
    """

    plots: ClassVar[dict[str, str]] = {
        "doses": "change of the loss at the longest prompts against the dose, with shams",
        "lengths": "change of the loss by length, each remedy at its best dose",
        "slopes": "slopes of the variance by head, untreated and treated",
    }
    joins: ClassVar[str] = "llmprobe.probes.remedies"
    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Change of the loss at the longest prompts",
            x="dose",
            x_axis="dose",
            log_x=False,
            y="change",
            low="change_low",
            high="change_high",
            axis="nats per token, treated minus untreated, with 95 % CI over prompts",
            by="treatment",
            frame="dose_frame",
        ),
    )

    lengths: tuple[int, ...]
    context_length: int
    """What the model was trained for; most remedies act beyond it."""
    measures: tuple[str, ...]
    remedies: tuple[str, ...]
    """Of each treatment."""
    arms: tuple[str, ...]
    """remedy; shuffled: the same doses or gains on other heads; norm kept: directions only."""
    doses: Array
    n_prompts: Integers
    """(measures, lengths)"""
    baseline: Array
    """Of the untreated model: (measures, lengths), like the next two."""
    baseline_low: Array
    baseline_high: Array
    change: Array
    """Treated minus untreated, mean over prompts of paired differences."""
    change_low: Array
    change_high: Array
    p: Array
    """Of the paired t test that nothing changes; NaN where it is exactly so."""
    detectable: Array
    """The smallest change that the same test finds in four of five cases."""
    versus_sham: Array
    """Remedy minus its shuffled sham, paired; NaN for shams."""
    versus_sham_low: Array
    versus_sham_high: Array
    layer: Integers
    """Of each head whose slope was measured."""
    head: Integers
    slope_of: Integers
    """The treatments that slopes were measured with; −1 is untreated, and comes first."""
    slope: Array
    """d log std / d log N: (treatments with slopes, heads), like the next."""
    slope_low: Array
    slope_high: Array
    slope_change: Array
    """Treated minus untreated."""
    slope_change_low: Array
    slope_change_high: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "measures", "remedies", "arms"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        n_lengths, n_measures, n = len(self.lengths), len(self.measures), len(self.remedies)
        if not n_lengths or not n_measures or not n:
            raise ValueError("got no length, no measure or no remedy, accepted: at least one each")
        if not all(isinstance(x, int) and x > 1 for x in (*self.lengths, self.context_length)):
            raise ValueError("lengths and context_length: accepted: whole numbers above 1")
        if not set(self.measures) <= MEASURES.keys() or not set(self.arms) <= set(ARMS):
            raise ValueError(
                f"got measures {self.measures!r} and arms {self.arms!r}, accepted: "
                f"{', '.join(MEASURES)}; {', '.join(ARMS)}"
            )
        if len(self.arms) != n or not all(isinstance(name, str) for name in self.remedies):
            raise ValueError(f"got {n} remedies and {len(self.arms)} arms, accepted: as many")
        check_shape("doses", self.doses, (n,))
        for name in ("n_prompts", "baseline", "baseline_low", "baseline_high"):
            check_shape(name, getattr(self, name), (n_measures, n_lengths))
        for name in _CHANGES:
            check_shape(name, getattr(self, name), (n_measures, n, n_lengths))
        for name in ("layer", "head"):
            check_shape(name, getattr(self, name), (len(self.layer),))
        check_shape("slope_of", self.slope_of, (len(self.slope_of),))
        for name in _SLOPES:
            check_shape(name, getattr(self, name), (len(self.slope_of), len(self.layer)))
        if len(self.slope_of) and not (self.slope_of < n).all():
            raise ValueError(f"slope_of: got {self.slope_of!r}, accepted: -1 to {n - 1}")

    @property
    def significant(self) -> NDArray[np.bool_]:
        """Which changes are significant at 5 % after Holm's correction, over all remedies, doses
        and lengths of a measure; shams are not tested."""
        found = np.zeros(self.p.shape, dtype=bool)
        tested = np.array([arm == "remedy" for arm in self.arms])
        for row, p in enumerate(self.p):
            found[row, tested] = holm(p[tested].ravel()).reshape(-1, len(self.lengths))
        return found

    def names(self) -> list[str]:
        """The remedies, each once, in their order."""
        return list(dict.fromkeys(self.remedies))

    def treatments(self, remedy: str, arm: str = "remedy") -> NDArray[np.int64]:
        """The numbers of a remedy's treatments, by rising dose."""
        found = [
            at
            for at, pair in enumerate(zip(self.remedies, self.arms, strict=True))
            if pair == (remedy, arm)
        ]
        return np.array(sorted(found, key=lambda at: self.doses[at]), dtype=np.int64)

    def best(self, remedy: str) -> int:
        """The treatment of a remedy with the lowest loss at the longest prompts."""
        found = self.treatments(remedy)
        changes = self.change[0, found, -1]
        return int(found[np.nanargmin(changes) if np.isfinite(changes).any() else 0])

    def verdict(self, remedy: str) -> str:
        """helps, helps like its sham, hurts, or no difference: at the longest prompts, by loss."""
        found = self.treatments(remedy)
        sure = self.significant[0, found, -1]
        change = self.change[0, found, -1]
        if (sure & (change < 0)).any():
            best = self.best(remedy)
            beats = self.versus_sham_high[0, best, -1] < 0
            return "helps" if beats else "helps like its sham"
        return "hurts" if (sure & (change > 0)).any() else "no difference"

    def headline(self) -> str:
        verdicts = {name: self.verdict(name) for name in self.names()}
        helping = [name for name, verdict in verdicts.items() if verdict == "helps"]
        what = f"{', '.join(helping)} help" if helping else "none helps"
        if len(helping) == 1:
            what = f"{helping[0]} helps"
        doses = count([len(set(self.doses))], "dose")
        return (
            f"remedies for {self.provenance.model}: of {len(verdicts)} at {doses}, {what} at "
            f"{self._span()} tokens, {self.n_prompts[0].min()} prompts"
        )

    def _span(self) -> str:
        first = self.lengths[-2] + 1 if len(self.lengths) > 1 else 2
        return f"{first} to {self.lengths[-1]}"

    def reading(self) -> str:
        """What the changes say, in words."""
        sentences, unseen = [], []
        for name in self.names():
            verdict, best = self.verdict(name), self.best(name)
            dose = f"dose {self.doses[best]:g}"
            shown = self._change(best)
            if verdict == "helps":
                words = f"{name} helps: at {dose} the loss changes by {shown}"
            elif verdict == "helps like its sham":
                words = f"{name} lowers the loss by no more than its sham: at {dose} {shown}"
            elif verdict == "hurts":
                words = f"{name} hurts: at its best, {dose}, the loss changes by {shown}"
            elif not np.isfinite(self.p[0, best, -1]):
                words = f"{name} changes nothing up to {self.lengths[-1]} tokens"
            else:
                unseen.append(name)
                continue
            if verdict in ("helps", "helps like its sham"):
                words += f"; against its sham {self._versus(best)}"
            sentences.append(f"{words}.")
        if unseen:
            sentences.append(self._unseen(unseen))
        return f"At {self._span()} tokens: {' '.join(sentences)}"

    def _unseen(self, names: list[str]) -> str:
        """Of remedies without a clear change: how far off they are, and what would be seen."""
        best = [self.best(name) for name in names]
        if len(names) == 1:
            what = f"{names[0]} makes no clear difference: at dose {self.doses[best[0]]:g}"
            what += f" {self._change(best[0])}"
        else:
            changes = self.change[0, best, -1]
            what = f"{', '.join(names[:-1])} and {names[-1]} make no clear difference: at their "
            what += minus(f"best doses {changes.min():+.3f} to {changes.max():+.3f} nats")
        found = self.detectable[0, best, -1]
        seen = " to ".join(dict.fromkeys(f"{x:.3f}" for x in (found.min(), found.max())))
        return f"{what}. A change of {seen} nats would have been seen in four of five cases."

    def _change(self, at: int) -> str:
        change, low, high = (x[0, at, -1] for x in (self.change, self.change_low, self.change_high))
        return minus(f"{change:+.3f} nats (95 % CI {low:+.3f} to {high:+.3f})")

    def _versus(self, at: int) -> str:
        low, high = self.versus_sham_low[0, at, -1], self.versus_sham_high[0, at, -1]
        return minus(f"{self.versus_sham[0, at, -1]:+.3f} (95 % CI {low:+.3f} to {high:+.3f})")

    def remarks(self) -> list[str]:
        return [self.reading()]

    def to_frame(self) -> "pd.DataFrame":
        """A row for each measure, treatment and length that was measured."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [self.measures, range(len(self.remedies)), self.lengths],
            names=["measure", "treatment", "length"],
        )
        frame = pd.DataFrame({name: getattr(self, name).ravel() for name in _CHANGES}, index=index)
        frame["significant"] = self.significant.ravel()
        frame = frame.reset_index()
        at = frame.treatment.to_numpy()
        frame.insert(1, "remedy", np.array(self.remedies, dtype=object)[at])
        frame.insert(2, "dose", self.doses[at])
        frame.insert(3, "arm", np.array(self.arms, dtype=object)[at])
        shape = self.change.shape
        for name in ("baseline", "n_prompts"):
            values = np.broadcast_to(getattr(self, name)[:, None], shape)
            frame.insert(6, name, values.ravel())
        return frame[frame.change.notna()].drop(columns="treatment").reset_index(drop=True)

    def dose_frame(self) -> "pd.DataFrame":
        """A row for each treatment: the change of the loss at the longest prompts."""
        frame = self.to_frame()
        frame = frame[(frame.measure == "loss") & (frame.length == self.lengths[-1])]
        arms = frame.arm.map(lambda arm: "" if arm == "remedy" else f", sham: {arm}")
        columns = ["treatment", "dose", "change", "change_low", "change_high", "p", "significant"]
        return frame.assign(treatment=frame.remedy + arms)[columns].reset_index(drop=True)

    def key_frame(self) -> "pd.DataFrame":
        return self.dose_frame()

    def command(self) -> str:
        """The command with the arguments of this run."""
        told = self.provenance.arguments
        options = {name: told[name] for name in told if name not in ("query", "variance_hash")}
        return command_line(self.kind, options, self.provenance.model)

    def slope_frame(self) -> "pd.DataFrame":
        """A row for each head and treatment whose slope was measured; untreated is dose 0."""
        import pandas as pd

        n = len(self.layer)
        remedies = ["untreated" if at < 0 else self.remedies[at] for at in self.slope_of]
        doses = [0.0 if at < 0 else float(self.doses[at]) for at in self.slope_of]
        columns: dict[str, Any] = {
            "remedy": np.repeat(np.array(remedies, dtype=object), n),
            "dose": np.repeat(np.array(doses), n),
            "layer": np.tile(self.layer, len(remedies)),
            "head": np.tile(self.head, len(remedies)),
        }
        return pd.DataFrame(columns | {name: getattr(self, name).ravel() for name in _SLOPES})

    def table(self, *, width: int | None = None) -> Any:
        """A row for each remedy and dose at the longest prompts: the loss, then what else is known.

        One table for all would be wider than a terminal.
        """
        from rich.console import Group

        where = f"treated minus untreated, {self._span()} tokens"
        table = titled(f"change of the loss (nats per token), {where}")
        table.add_column("remedy", no_wrap=True)
        for name in ("dose", "change", "95 % CI", "p", "− sham", "95 % CI"):
            table.add_column(name, justify="right", no_wrap=True)
        others = titled(f"change of other measures, {where}")
        others.add_column("remedy", no_wrap=True)
        for name in ("dose", *(name.replace("_", " ") for name in self.measures[1:])):
            others.add_column(name, justify="right", no_wrap=True)
        treated = [(name, at) for name in self.names() for at in self.treatments(name)]
        for name, at in treated:
            first = (escape(name), f"{self.doses[at]:g}")
            p = p_cell(self.p[0, at, -1], significant=bool(self.significant[0, at, -1]))
            table.add_row(*first, *self._ends("change", at), p, *self._ends("versus_sham", at))
            cells = (self._cell(row, at) for row in range(1, len(self.measures)))
            others.add_row(*first, *cells)
        table.caption = (
            "− sham: minus the change by a sham, which does as much in the wrong places; p of a "
            "paired t test; * significant at 5 % after Holm's correction"
        )
        return Group(table, "", others) if self.measures[1:] else table

    def _ends(self, name: str, at: int) -> tuple[str, str]:
        """A number of the loss at the longest prompts, and its interval."""
        value, low, high = (getattr(self, f"{name}{end}")[0, at, -1] for end in ENDS)
        if np.isnan(value):
            return "–", "–"
        return minus(f"{value:+.3f}"), minus(f"{low:+.3f} to {high:+.3f}")

    def _cell(self, row: int, at: int) -> str:
        change = self.change[row, at, -1]
        if np.isnan(change):
            return "–"
        star = " *" if self.significant[row, at, -1] else ""
        form = "{:+.1%}" if self.measures[row] in _SHARES else "{:+.3f}"
        return minus(form.format(change)) + star

    def to_document(self) -> dict[str, Any]:
        verdicts = {name: self.verdict(name) for name in self.names()}
        slopes = records(self.slope_frame())
        more = {"reading": self.reading(), "verdicts": verdicts, "slopes": slopes}
        return super().to_document() | more

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import remedy as figures

        if kind == "slopes":
            if not len(self.slope_of):
                raise ValueError("slopes: the probe measured none; use another figure")
            return figures.draw_slopes(self.slope_frame(), ax=ax)
        frame = self.to_frame()
        frame = frame[frame.measure == "loss"]
        if kind == "doses":
            return figures.draw_doses(frame[frame.length == self.lengths[-1]], self._span(), ax=ax)
        best = [self.best(name) for name in self.names()]
        chosen = {(self.remedies[at], float(self.doses[at])) for at in best}
        keep = [pair in chosen for pair in zip(frame.remedy, frame.dose, strict=True)]
        return figures.draw_lengths(frame[keep], trained=self.context_length, ax=ax)


_CHANGES = (
    *("change", "change_low", "change_high", "p", "detectable"),
    *("versus_sham", "versus_sham_low", "versus_sham_high"),
)
_SLOPES = (
    *("slope", "slope_low", "slope_high"),
    *("slope_change", "slope_change_low", "slope_change_high"),
)
