"""The loss without classes of heads, by position, next to random heads.

result = load_result("runs/ablation-llama")
result.to_frame(), result.reading()
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.markup import escape

from llmprobe.base.intervals import holm
from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS
from llmprobe.results.base import Result, check_shape, command_line
from llmprobe.results.series import Array, Integers
from llmprobe.results.tables import MANY, MAX_ROWS, interval_cell, p_cell, span, titled
from llmprobe.results.views import HeadMap, Lines, View

if TYPE_CHECKING:
    import pandas as pd

_HEADS = re.compile(r"\d{1,6}\.\d{1,6}(,\d{1,6}\.\d{1,6})*", re.ASCII)
_NAMED = 6
"""Classes that the reading names, at most."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AblationResult(Result, kind="ablation"):
    """How the loss between consecutive lengths changes when heads give their mean output.

    Arrays have the shape (lengths,) or (classes, lengths). Changes are paired over prompts, with
    95 % confidence intervals.
    """

    plots: ClassVar[dict[str, str]] = {
        "change": "change of the loss without each class of heads, by position",
    }
    views: ClassVar[tuple[View, ...]] = (
        HeadMap(
            title="Which heads are needed",
            value="change",
            low="change_low",
            high="change_high",
            axis="nats per token, longest prompts",
            frame="head_frame",
        ),
        Lines(
            title="Loss without these heads",
            y="change",
            low="change_low",
            high="change_high",
            axis="change in nats per token, paired, with 95 % CI over prompts",
            by="class",
        ),
    )
    joins: ClassVar[str] = "llmprobe.probes.ablation"

    lengths: tuple[int, ...]
    context_length: int | None
    """What the model was trained for."""
    classes: tuple[str, ...]
    """Names of the classes, each followed by its controls."""
    heads: tuple[str, ...]
    """Their heads, such as `0.3,2.1`."""
    control_of: tuple[int, ...]
    """For a control the number of its class, else −1."""
    n_prompts: Integers
    n_tokens: Integers
    """Tokens of a prompt that were predicted: those between the length before and this one, or
    `same_targets`."""
    baseline: Array
    """Nats per token with all heads, mean over prompts."""
    baseline_low: Array
    baseline_high: Array
    change: Array
    """Nats per token without the class minus those with all heads, mean over prompts."""
    change_low: Array
    change_high: Array
    p: Array
    """Of the paired t test that the change is 0, not corrected."""
    versus_random: Array
    """The change minus the mean change of the class's controls; NaN for controls themselves."""
    versus_random_low: Array
    versus_random_high: Array
    same_targets: int | None = None
    """How many last tokens of each prompt were predicted, without the heads at these tokens, from
    contexts of every length; None for the loss between consecutive lengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "classes", "heads", "control_of"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.lengths or not all(isinstance(n, int) and n > 1 for n in self.lengths):
            raise ValueError(f"lengths: got {self.lengths!r}, accepted: whole numbers above 1")
        words = all(isinstance(word, str) for word in (*self.classes, *self.heads))
        n = len(self.classes)
        known = all(isinstance(k, int) and -1 <= k < n for k in self.control_of)
        fits = n and words and known and len(self.heads) == len(self.control_of) == n
        if not fits or not all(_HEADS.fullmatch(text) for text in self.heads):
            raise ValueError("classes, heads and control_of do not fit together")
        for name in ("n_prompts", "n_tokens", *(f"baseline{end}" for end in ENDS)):
            check_shape(name, getattr(self, name), (len(self.lengths),))
        for name in ("p", *(f"{x}{end}" for x in ("change", "versus_random") for end in ENDS)):
            check_shape(name, getattr(self, name), (n, len(self.lengths)))

    def to_frame(self) -> "pd.DataFrame":
        """A row for each class and length. `start` is where the row's tokens begin."""
        import pandas as pd

        n, n_lengths = len(self.classes), len(self.lengths)
        columns: dict[str, Any] = {
            "class": np.repeat(np.array(self.classes, dtype=object), n_lengths),
            "is_control": np.repeat(np.array(self.control_of) >= 0, n_lengths),
            "n_heads": np.repeat([text.count(".") for text in self.heads], n_lengths),
            "heads": np.repeat(np.array(self.heads, dtype=object), n_lengths),
            "length": np.tile(self.lengths, n),
            "start": np.tile(np.array(self.lengths) - self.n_tokens, n),
            "n_prompts": np.tile(self.n_prompts, n),
            "baseline": np.tile(self.baseline, n),
        }
        names = (*(f"change{end}" for end in ENDS), "p")
        names += tuple(f"versus_random{end}" for end in ENDS)
        return pd.DataFrame(columns | {name: getattr(self, name).ravel() for name in names})

    def head_frame(self) -> "pd.DataFrame":
        """A row for each class of one head: what the loss is without it at the longest length."""
        rows = self.key_frame()
        rows = rows[(rows.n_heads == 1) & ~rows.is_control].reset_index(drop=True)
        layer, head = ([int(text.split(".")[k]) for text in rows["heads"]] for k in (0, 1))
        names = ["n_prompts", "change", "change_low", "change_high", "p", "significant"]
        found = rows[names]
        found.insert(0, "head", head)
        found.insert(0, "layer", layer)
        return found

    def key_frame(self) -> "pd.DataFrame":
        """The longest length alone, with Holm's correction over the classes."""
        frame = self.to_frame()
        last = frame[frame.length == self.lengths[-1]].reset_index(drop=True)
        own = ~last.is_control.to_numpy()
        significant = np.zeros(len(last), dtype=bool)
        significant[own] = holm(last.p.to_numpy()[own])
        return last.assign(significant=significant)

    def command(self) -> str | None:
        """None if the classes were given from Python."""
        given = dict(self.provenance.arguments)
        if given.get("heads") == "classes":
            return None
        for name in ("classes", "controls", "layers", "query"):
            given.pop(name, None)
        return command_line("ablate", given, self.provenance.model)

    def headline(self) -> str:
        n = sum(k < 0 for k in self.control_of)
        return (
            f"ablation of {self.provenance.model}: {n} class{'es' * (n != 1)} of heads, up to "
            f"{self.lengths[-1]} tokens, {span(self.n_prompts.tolist())} prompts"
        )

    def reading(self) -> str:
        """What the changes at the longest length say, in words."""
        rows = self.key_frame()
        own = rows[~rows.is_control].sort_values("change", ascending=False)
        named = own if len(own) <= _NAMED else own[own.significant].head(_NAMED)
        said = []
        for row in named.to_dict("records"):
            sure = "" if row["significant"] else ", no clear change"
            random = ""
            if np.isfinite(row["versus_random"]):
                low, high = row["versus_random_low"], row["versus_random_high"]
                random = f"; {row['versus_random']:+.3f} [{low:+.3f}, {high:+.3f}] against random"
            said.append(
                f"{row['class']} ({row['n_heads']} head{'s' * (row['n_heads'] != 1)}) "
                f"{row['change']:+.3f} [{row['change_low']:+.3f}, {row['change_high']:+.3f}]"
                f"{sure}{random}"
            )
        n_clear = int(own.significant.sum())
        if n_clear > len(named):
            said.append(f"and {n_clear - len(named)} more")
        if len(own) > max(_NAMED, n_clear):
            said.append(f"no clear change for {len(own) - n_clear} of {len(own)} classes")
        return minus(
            f"Nats per token{self._where()} without a class of heads: {'; '.join(said)}. "
            "95 % CIs over prompts; clear means 5 % after Holm's correction over classes."
        )

    def _where(self) -> str:
        """The tokens of the longest length that were predicted."""
        last, n = self.lengths[-1], int(self.n_tokens[-1])
        if self.same_targets is None:
            return f" from {last - n} to {last}"
        return f" of the last {n} in prompts of {last} tokens"

    def remarks(self) -> list[str]:
        return [self.reading()]

    def table(self, *, width: int | None = None) -> Any:
        table = titled(f"change of the loss without these heads,{self._where()}")
        rows = self.key_frame()
        unnamed = (rows["class"] == rows["heads"]) & (rows.n_heads == 1)
        single = bool(unnamed[~rows.is_control].all())
        table.add_column("layer.head" if single else "class (heads)", overflow="fold")
        compared = bool(np.isfinite(rows.versus_random).any())
        if not compared and len(rows) > MANY:
            rows = rows.sort_values("change", ascending=False, kind="stable")
        for name in ("nats", "95 % CI", "p", *(("− random", "95 % CI") if compared else ())):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows.head(MAX_ROWS).to_dict("records"):
            ends = {"low": row["change_low"], "high": row["change_high"]}
            versus = {"low": row["versus_random_low"], "high": row["versus_random_high"]}
            known = np.isfinite(row["versus_random"])
            name = row["class"]
            if row["is_control"]:  # below the class that it is a control of
                name = f"  {name.rpartition(', ')[2]}"
            table.add_row(
                escape(name if single else f"{name} ({row['n_heads']})"),
                minus(f"{row['change']:+.3f}"),
                interval_cell(ends, "{:+.3f} to {:+.3f}"),
                p_cell(row["p"], significant=row["significant"]),
                *([minus(f"{row['versus_random']:+.3f}")] if known else []),
                *([interval_cell(versus, "{:+.3f} to {:+.3f}")] if known else []),
            )
        table.caption = "p of a paired t test; * significant at 5 % after Holm's correction"
        if compared:
            table.caption += "; − random: minus the change without as many random heads"
        if len(rows) > MAX_ROWS:
            more = f"and {len(rows) - MAX_ROWS} more rows in the saved result"
            table.caption = f"{more}\n{table.caption}"
        return table

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {"reading": self.reading()}

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures.ablation import draw_changes

        return draw_changes(self.to_frame(), same_targets=self.same_targets, ax=ax)
