"""The loss of a model by position and by context.

result = load_result("runs/loss-llama")
result.to_frame(), result.reading(), result.plot("context")
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from rich.markup import escape

from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS
from llmprobe.results.base import Result, check_shape, command_line, missing_as_nan
from llmprobe.results.series import Array, Integers
from llmprobe.results.tables import span, titled
from llmprobe.results.views import Lines, View

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LossResult(Result, kind="loss"):
    """Nats per token by position in the prompt, and what more context buys.

    Every statistic has the ends of its 95 % confidence interval over prompts. Arrays have the shape
    (lengths,). Those by context are NaN where `same_targets` is None.
    """

    plots: ClassVar[dict[str, str]] = {
        "position": "nats per token by position in the prompt",
        "bytes": "bits per byte by position, to compare tokenizers",
        "context": "loss of the same last tokens by length of their context",
        "gain": "what more context buys, paired over prompts",
    }
    views: ClassVar[tuple[View, ...]] = (
        Lines(
            title="Loss by position",
            y="loss",
            low="loss_low",
            high="loss_high",
            axis="nats per token between lengths, with 95 % CI over prompts",
            by="result",
        ),
        Lines(
            title="What more context buys",
            y="context_gain",
            low="context_gain_low",
            high="context_gain_high",
            axis="nats per token, same targets, against the shortest context",
            by="result",
        ),
    )
    comparable: ClassVar[bool] = True
    joins: ClassVar[str] = "llmprobe.probes.loss"

    lengths: tuple[int, ...]
    same_targets: int | None
    """How many last tokens of each prompt were predicted from contexts of every length."""
    context_length: int | None
    """What the model was trained for."""
    n_prompts: Integers
    n_tokens: Integers
    """Tokens of a prompt between the length before and this one."""
    loss: Array
    """Nats per token between the length before and this one, mean over prompts."""
    loss_low: Array
    loss_high: Array
    bits_per_byte: Array
    """Bits of those tokens, of all prompts, over the UTF-8 bytes that they decode to."""
    bits_per_byte_low: Array
    bits_per_byte_high: Array
    context_loss: Array = missing_as_nan("lengths")
    """Nats per token of the same last tokens, in prompts of this length, mean over prompts."""
    context_loss_low: Array = missing_as_nan("lengths")
    context_loss_high: Array = missing_as_nan("lengths")
    context_gain: Array = missing_as_nan("lengths")
    """Context loss at the shortest length minus that at this one, paired over prompts."""
    context_gain_low: Array = missing_as_nan("lengths")
    context_gain_high: Array = missing_as_nan("lengths")
    key_share: Array = missing_as_nan("lengths")
    """Share of those tokens that this length predicts with less than 2 nats, and the shortest one
    with over 2 nats more (LongPPL's key tokens)."""
    key_share_low: Array = missing_as_nan("lengths")
    key_share_high: Array = missing_as_nan("lengths")
    key_loss: Array = missing_as_nan("lengths")
    """Nats per key token of the longest length. At the ends it is low and high by their choice."""
    key_loss_low: Array = missing_as_nan("lengths")
    key_loss_high: Array = missing_as_nan("lengths")

    statistics: ClassVar[tuple[str, ...]] = (
        *("loss", "bits_per_byte", "context_loss", "context_gain", "key_share", "key_loss"),
    )
    by_length: ClassVar[tuple[str, ...]] = tuple(
        f"{name}{end}" for name in statistics for end in ("", "_low", "_high")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lengths", tuple(self.lengths))
        if not self.lengths or not all(isinstance(n, int) and n > 1 for n in self.lengths):
            raise ValueError(f"lengths: got {self.lengths!r}, accepted: whole numbers above 1")
        for name in ("same_targets", "context_length"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value > 0):
                raise ValueError(f"{name}: got {value!r}, accepted: a positive number, or None")
        for name in ("n_prompts", "n_tokens", *self.by_length):
            check_shape(name, getattr(self, name), (len(self.lengths),))

    def to_frame(self) -> "pd.DataFrame":
        """A row for each length. `start` is the length before, where the row's tokens begin."""
        import pandas as pd

        columns: dict[str, Any] = {
            "length": self.lengths,
            "start": np.array(self.lengths) - self.n_tokens,
            "n_tokens": self.n_tokens,
            "n_prompts": self.n_prompts,
        }
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self.by_length})

    def command(self) -> str:
        given = self.provenance.arguments.items()
        options = {name: value for name, value in given if name not in ("layers", "query")}
        return command_line(self.kind, options, self.provenance.model)

    def headline(self) -> str:
        return (
            f"loss of {self.provenance.model}: {self._interval('loss', -1)} nats per token up to "
            f"{self.lengths[-1]} tokens, {span(self.n_prompts.tolist())} prompts"
        )

    def reading(self) -> str:
        """What the losses say, in words."""
        if not np.isfinite(self.loss).any():
            return "No loss is finite."
        best = int(np.nanargmin(self.loss))
        text = (
            f"The loss is lowest up to {self.lengths[best]} tokens, "
            f"{self._interval('loss', best)} nats per token"
        )
        last = f"; up to {self.lengths[-1]} it is {self._interval('loss', -1)}"
        text += "." if best == len(self.lengths) - 1 else f"{last}."
        if self.same_targets is None or len(self.lengths) < 2:
            return text
        low, high = self.context_gain_low[-1], self.context_gain_high[-1]
        sure = "lowers" if low > 0 else "raises" if high < 0 else "does not clearly change"
        by = minus(f"{-self.context_gain[-1]:+.3f} nats (95 % CI {-high:+.3f} to {-low:+.3f})")
        key = f"{self.key_share[-1]:.1%} of them are key tokens, which need that context"
        return (
            f"{text} Context of {self.lengths[-1]} instead of {self.lengths[0]} tokens {sure} the "
            f"loss of the same tokens: {by}. {key}: "
            "less than 2 nats with it, and over 2 nats more without."
        )

    def remarks(self) -> list[str]:
        return [self.reading()]

    def table(self, *, width: int | None = None) -> Any:
        """By position, and below it by context: both at once would be wider than a terminal."""
        from rich.console import Group

        names = {"loss": "nats per token", "bits_per_byte": "bits per byte"}
        by_position = self._rows("loss between consecutive lengths, mean over prompts", names)
        if self.same_targets is None:
            return by_position
        names = {"context_loss": "nats", "key_share": "key", "key_loss": "key nats"}
        title = f"loss of the same last {self.same_targets} tokens, by length of their context"
        by_context = self._rows(title, names)
        by_context.caption = "key: share of key tokens among them; key nats: loss of a key token"
        return Group(by_position, "", by_context)

    def _rows(self, title: str, names: Mapping[str, str]) -> Any:
        """A row for each length, with some of the columns and their intervals."""
        table = titled(title)
        table.add_column("up to", justify="right")
        for heading in names.values():
            table.add_column(heading, justify="right", no_wrap=True)
            table.add_column("95 % CI", justify="right", no_wrap=True)
        for row, length in enumerate(self.lengths):
            cells = []
            for name in names:
                mean, low, high = (getattr(self, f"{name}{end}")[row] for end in ENDS)
                missing = np.isnan(mean)
                cells += ["–" if missing else minus(f"{mean:.3f}")]
                cells += ["–" if np.isnan(low) else minus(f"{low:.3f} to {high:.3f}")]
            table.add_row(f"{length}", *cells)
        return table

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {"reading": self.reading()}

    def _interval(self, name: str, at: int) -> str:
        mean, low, high = (getattr(self, f"{name}{end}")[at] for end in ENDS)
        return f"{mean:.3f}" + ("" if np.isnan(low) else f" (95 % CI {low:.3f} to {high:.3f})")

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import loss as figures

        frame = self.to_frame()
        if kind in ("position", "bytes"):
            what = "loss" if kind == "position" else "bits_per_byte"
            return figures.draw_positions(frame, what, trained=self.context_length, ax=ax)
        if self.same_targets is None:
            raise ValueError(f"{kind}: the probe had no same_targets; use another figure")
        draw = figures.draw_context if kind == "context" else figures.draw_gain
        return draw(frame, n_targets=self.same_targets, trained=self.context_length, ax=ax)

    @classmethod
    def compare(cls, named: Mapping[str, Self]) -> tuple[Any, Any]:
        """A table and the Axes of a figure of several results; bits per byte if models differ."""
        from llmprobe.results.figures.loss import draw_comparison

        one_model = len({result.provenance.model for result in named.values()}) == 1
        what, unit = ("loss", "nats per token") if one_model else ("bits_per_byte", "bits per byte")
        table = titled(f"{unit} between consecutive lengths, with 95 % CI")
        table.add_column("result")
        for name in ("prompts", "shortest", "longest", "lowest", "lowest up to"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, result in named.items():
            values = getattr(result, what)
            known = np.isfinite(values)
            best = int(np.nanargmin(values)) if known.any() else 0
            shown = (result._interval(what, at) for at in (0, -1, best))
            n_prompts = span(result.n_prompts.tolist())
            table.add_row(escape(name), n_prompts, *shown, f"{result.lengths[best]}")
        frames = {name: result.to_frame() for name, result in named.items()}
        return table, draw_comparison(frames, what)
