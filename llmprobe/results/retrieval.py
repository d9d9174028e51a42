"""Right answers by length, and the attention of every head on what the answer was taken from.

result = load_result("runs/retrieval-llama")
result.answers_frame(), result.links_frame(), result.plot("source")
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmprobe.base.signs import minus
from llmprobe.base.trends import ENDS
from llmprobe.results.base import check_shape, command_line, records
from llmprobe.results.series import Array, SeriesResult
from llmprobe.results.tables import titled
from llmprobe.results.views import HeadMap, Lines, View

if TYPE_CHECKING:
    import pandas as pd

N_SHOWN = 8
"""Heads in the table and in figures: those that attend most to the source."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RetrievalResult(SeriesResult, kind="retrieval"):
    """How often a model finds what its prompt says, and which heads look there.

    Answers have arrays of the shape (lengths,), heads (series, lengths), correlations (series,).
    Intervals are of 95 %, over prompts.
    """

    plots: ClassVar[dict[str, str]] = {
        "accuracy": "right answers by length, with chance",
        "source": "attention on the source by length, for the heads with most",
        "links": "rank correlation of the answer's loss with attention on the source, by head",
    }
    views: ClassVar[tuple[View, ...]] = (
        HeadMap(
            title="Attention on the source and loss",
            value="loss_source",
            low="loss_source_low",
            high="loss_source_high",
            axis="Spearman's ρ over prompts of one length, pooled",
            frame="links_frame",
        ),
        Lines(
            title="Attention on the source",
            y="source",
            low="source_low",
            high="source_high",
            axis="weight of the last query on the source, mean over prompts",
            percent=True,
        ),
        Lines(
            title="Right answers",
            y="accuracy",
            low="accuracy_low",
            high="accuracy_high",
            axis="share of prompts with the right next token",
            by="result",
            percent=True,
            frame="answers_frame",
        ),
    )
    joins: ClassVar[str] = "llmprobe.probes.retrieval"

    context_length: int | None
    """What the model was trained for."""
    n_pairs: Array
    """Pairs in a dictionary prompt, mean over prompts; NaN for other prompts."""
    distance: Array
    """Tokens from the source to the prompt's end, mean over prompts."""
    accuracy: Array
    """Share of prompts for which the model's next token is the answer's."""
    accuracy_low: Array
    accuracy_high: Array
    chance: Array
    """Accuracy of a draw: one of the prompt's values (dictionary), or any token (repeat)."""
    blind: Array
    """Accuracy of the most frequent first token of the prompt's values; NaN for other prompts."""
    answer_loss: Array
    """Nats per token of the answer: a value's first token, or the repeated passage."""
    answer_loss_low: Array
    answer_loss_high: Array
    source: Array
    """Weight of the last query on the source, mean over prompts: (series, lengths)."""
    source_low: Array
    source_high: Array
    norm: Array
    """Norm of the head's output, mean over prompts."""
    effective: Array
    """Effective tokens 1/Σa², mean over prompts."""
    right_source: Array
    """Spearman's ρ of being right and attention on the source, over prompts of one length, pooled
    over lengths: (series,)."""
    right_source_low: Array
    right_source_high: Array
    right_norm: Array
    """The same with the norm of the head's output."""
    right_norm_low: Array
    right_norm_high: Array
    right_effective: Array
    """The same with the head's effective tokens."""
    right_effective_low: Array
    right_effective_high: Array
    loss_source: Array
    """Spearman's ρ of the answer's nats and attention on the source, pooled likewise: below 0 where
    attention on the source goes with better answers. It is known where no answer is right, too."""
    loss_source_low: Array
    loss_source_high: Array

    by_length: ClassVar[tuple[str, ...]] = (
        *("source", "source_low", "source_high", "norm", "effective"),
    )
    of_answers: ClassVar[tuple[str, ...]] = (
        *("n_pairs", "distance", "accuracy", "accuracy_low", "accuracy_high", "chance", "blind"),
        *("answer_loss", "answer_loss_low", "answer_loss_high"),
    )
    of_series: ClassVar[tuple[str, ...]] = (
        *("right_source", "right_source_low", "right_source_high"),
        *("right_norm", "right_norm_low", "right_norm_high"),
        *("right_effective", "right_effective_low", "right_effective_high"),
        *("loss_source", "loss_source_low", "loss_source_high"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.of_answers:
            check_shape(name, getattr(self, name), (len(self.lengths),))
        for name in self.of_series:
            check_shape(name, getattr(self, name), (len(self.layer_type),))
        trained = self.context_length
        if trained is not None and not (isinstance(trained, int) and trained > 0):
            raise ValueError(f"context_length: got {trained!r}, accepted: a positive number, None")

    def command(self) -> str:
        options = {k: v for k, v in self.provenance.arguments.items() if k != "query"}
        return command_line(self.kind, options, self.provenance.model)

    def answers_frame(self) -> "pd.DataFrame":
        """A row for each length: accuracy with its interval, chance, loss of the answer."""
        import pandas as pd

        columns: dict[str, Any] = {"length": self.lengths, "n_prompts": self.n_prompts[0]}
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self.of_answers})

    def links_frame(self) -> "pd.DataFrame":
        """A row for each head: attention on the source, and its correlations with being right."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        columns["source"] = self.source.mean(axis=1)
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self.of_series})

    def leading(self) -> list[int]:
        """The series with most attention on the source, mean over lengths, first."""
        means = np.nan_to_num(self.source.mean(axis=1))
        return [int(n) for n in np.argsort(-means, kind="stable")[:N_SHOWN]]

    def headline(self) -> str:
        ends = sorted({0, len(self.lengths) - 1})
        found = ", ".join(f"{self.accuracy[at]:.0%} at {self.lengths[at]}" for at in ends)
        return (
            f"retrieval of {self.provenance.model} ({self.provenance.prompts}): right answers "
            f"{found} tokens, {self.n_prompts.min()} prompts"
        )

    def reading(self) -> str:
        """What accuracy and attention say, in words."""
        above = self.accuracy_low > np.fmax(self.chance, np.nan_to_num(self.blind))
        at = [n for n, better in zip(self.lengths, above, strict=True) if better]
        if not at:
            text = f"Answers are not clearly better than {self._guesses()} at any length."
        else:
            few = ", ".join(map(str, at))
            text = f"Answers are better than {self._guesses()} at {few} tokens (95 % CI)."
        best = self.leading()[0]
        weight = self.source[best]
        name = f"layer {self.layer[best]} head {self.head[best]}"
        ends = sorted({0, len(self.lengths) - 1})
        weights = ", ".join(f"{weight[at]:.3f} at {self.lengths[at]}" for at in ends)
        text += f" The head with most attention on the source is {name}: {weights} tokens."
        right, worse = self.right_source_low > 0, self.loss_source_low > 0
        loss = self.loss_source_high < 0
        return (
            f"{text} More attention on the source goes with right answers in {right.sum()} of "
            f"{len(right)} heads, with a lower loss of the answer in {loss.sum()}, and with a "
            f"higher loss in {worse.sum()} (95 % CI of the rank correlation; chance alone would "
            f"give about {0.025 * len(right):.0f} of each)."
        )

    def _guesses(self) -> str:
        """What answers are compared with."""
        return "chance and the most frequent value" if np.isfinite(self.blind).any() else "chance"

    def remarks(self) -> list[str]:
        return [self.reading()]

    def table(self, *, width: int | None = None) -> Any:
        from rich.console import Group

        answers = titled("right answers by length")
        headings = ["tokens", "pairs", "right", "95 % CI", "chance", "frequent", "nats", "95 % CI"]
        for name in headings:
            answers.add_column(name, justify="right", no_wrap=True)
        for row in records(self.answers_frame()):
            low, high = row["answer_loss_low"], row["answer_loss_high"]
            answers.add_row(
                f"{row['length']}",
                _cell(row["n_pairs"], "{:.1f}"),
                _cell(row["accuracy"], "{:.1%}"),
                f"{row['accuracy_low']:.1%} to {row['accuracy_high']:.1%}",
                _cell(row["chance"], "{:.2%}"),
                _cell(row["blind"], "{:.1%}"),
                _cell(row["answer_loss"], "{:.3f}"),
                "–" if low is None else f"{low:.3f} to {high:.3f}",
            )
        answers.caption = (
            "chance: a random guess; frequent: the most frequent value; nats: loss of the answer"
        )
        return Group(answers, "", self._heads_table())

    def _heads_table(self) -> Any:
        """The heads with most attention on the source, and what that goes with."""
        heads = titled("attention on the source: the heads with most, and rank correlations ρ")
        ends = sorted({0, len(self.lengths) - 1})
        names = ["layer", "head", *(f"at {self.lengths[at]}" for at in ends)]
        for name in (*names, "ρ source", "95 % CI", "ρ norm", "ρ eff.", "ρ loss"):
            heads.add_column(name, justify="right", no_wrap=True)
        for n in self.leading():
            rho, low, high = (getattr(self, f"right_source{end}")[n] for end in ENDS)
            heads.add_row(
                f"{self.layer[n]}",
                f"{self.head[n]}",
                *(f"{self.source[n, at]:.3f}" for at in ends),
                _cell(rho, "{:+.2f}"),
                "–" if np.isnan(low) else minus(f"{low:+.2f} to {high:+.2f}"),
                _cell(self.right_norm[n], "{:+.2f}"),
                _cell(self.right_effective[n], "{:+.2f}"),
                _cell(self.loss_source[n], "{:+.2f}"),
            )
        heads.caption = (
            "ρ of a right answer with the weight on the source, the norm of the head's output, and "
            "its effective tokens; ρ loss: of the answer's loss with the weight on the source"
        )
        if (more := len(self.layer) - N_SHOWN) > 0:
            what = "head" if more == 1 else "heads"
            heads.caption = f"and {more} more {what} in the saved result\n{heads.caption}"
        return heads

    def to_document(self) -> dict[str, Any]:
        return super().to_document() | {
            "answers": records(self.answers_frame()),
            "links": self._records(self.links_frame()),
            "reading": self.reading(),
        }

    def _draw(self, kind: str, ax: Any) -> Any:
        from llmprobe.results.figures import retrieval as figures

        if kind == "accuracy":
            return figures.draw_accuracy(self.answers_frame(), trained=self.context_length, ax=ax)
        if kind == "source":
            frame = self.to_frame()
            shown = [(self.layer[n], self.head[n]) for n in self.leading()]
            parts = [frame[(frame.layer == x) & (frame["head"] == y)] for x, y in shown]
            return figures.draw_source(parts, ax=ax)
        return figures.draw_links(self.links_frame(), n_prompts=int(self.n_prompts.min()), ax=ax)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None or np.isnan(value) else minus(form.format(value))
