"""What became of each claim of the papers: a line for each run that is saved in figures/.

A run that is not there has no line, so a table grows as runs are made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import at, beyond, effect, interval, rows, saved, table

Found = Iterator[tuple[str, str, str]]
"""What was looked at, the effect with its CI, and the verdict."""


def variants(*names: str) -> Callable[[Any], Found]:
    """Of sets: the accuracy of variants minus that of the first, at 1,024 items."""

    def find(result: Any) -> Found:
        length = 1024 if 1024 in result.lengths else result.lengths[-1]
        for name in names:
            words, verdict = at(result, name, length)
            yield f"`{name}`, {length:,} items", f"{words} points", verdict

    return find


def parts(*names: str) -> Callable[[Any], Found]:
    """Of a search over sets: the effect of parts at 64 times the training length."""

    def find(result: Any) -> Found:
        times = 64 if 64 in result.lengths else result.lengths[-1]
        frame = result.effect_frame().set_index(["variant", "times"])
        for name in names:
            row = frame.loc[(name, times)]
            words = interval(*(100 * row[x] for x in ("difference", "low", "high")))
            counts = f"gains in {row.better} of {row.n_settings} settings, loses in {row.worse}"
            yield (
                f"`{name}`, {times} times the training length",
                f"{words} points; {counts}",
                (row.verdict),
            )

    return find


def changes(*names: str) -> Callable[[Any], Found]:
    """Of networks under changes at test time: accuracy minus that as it is, of the baseline."""

    def find(result: Any) -> Found:
        length = 1024 if 1024 in result.lengths else result.lengths[-1]
        frame = result.repair_frame().set_index(["condition", "variant", "length"])
        for name in names:
            row = frame.loc[(name, result.variants[0], length)]
            words = interval(*(100 * row[x] for x in ("difference", "low", "high")))
            yield f"“{name}”, {length:,} items", f"{words} points", row.verdict

    return find


def searched(name: str, where: str) -> Callable[[Any], Found]:
    """Of a search over sequences: the ratio of KL."""

    def find(result: Any) -> Found:
        words, verdict = effect(result, name, where)
        yield f"{name}, {where}", f"KL {words}", verdict

    return find


def sequences(*names: str, metric: str = "illegal_top1") -> Callable[[Any], Found]:
    """Of sequences: a metric beyond training, minus that of the first variant."""
    unit = {"illegal_top1": "points of illegal first choices", "kl": "nats of KL"}[metric]

    def find(result: Any) -> Found:
        for name in names:
            words, verdict = beyond(result, name, metric)
            yield f"`{name}` beyond training", f"{words} {unit}", verdict

    return find


@dataclass(frozen=True)
class Claim:
    """What a paper says, what would change our verdict, and what others found."""

    words: str
    change: str
    others: str
    runs: tuple[tuple[str, Callable[[Any], Found]], ...]


_PLACES = ("layernorm", "headnorm", "concatnorm", "postnorm")


def _norms(task: str) -> tuple[tuple[str, Callable[[Any], Found]], ...]:
    return (
        (f"anchor_{task}_main", variants("layernorm")),
        (f"anchor_{task}_projected", variants("outproj+concatnorm", "outproj+layernorm")),
        (f"anchor_{task}_residual", variants("residual+postnorm")),
        (f"norm_search_{task}", parts(*_PLACES)),
    )


CLAIMS = (
    Claim(
        "LayerNorm on the attention output helps argmax retrieval (2504.02827)",
        "long trainings with clipped gradients in which it gains, or loses, over 16 seeds",
        "a replication in 8 layers of width 512: −3.9 [−7.8, +1.2] points at 50 times the length",
        (
            ("table_argmax_constant", variants("layernorm")),
            ("table_argmax_cosine", variants("layernorm")),
            *_norms("argmax"),
        ),
    ),
    Claim(
        "LayerNorm on the attention output helps dictionary lookup (2504.02827)",
        "long trainings with clipped gradients that agree with the short ones, over 16 seeds",
        "none known",
        (("table_dictionary", variants("layernorm")), *_norms("dictionary")),
    ),
    Claim(
        "plain standardization helps too (2504.02827)",
        "as for LayerNorm",
        "none known",
        (
            ("table_ablation_norms", variants("standardize")),
            ("anchor_argmax_main", variants("standardize")),
            ("anchor_dictionary_main", variants("standardize")),
        ),
    ),
    Claim(
        "a colder softmax at test time helps (2410.01104)",
        "a setting of the search in which it loses more than a point",
        "the paper's own table: +3.9 points at 1,024 items",
        (
            ("table_argmax_cosine", variants("baseline+adaptive")),
            ("anchor_argmax_main", variants("adaptive")),
            ("anchor_dictionary_main", variants("adaptive")),
            ("norm_search_argmax", parts("adaptive")),
            ("norm_search_dictionary", parts("adaptive")),
        ),
    ),
    Claim(
        "lost variance is why larger sets fail: the moments of training repair accuracy",
        "moments that repair more than the attention of a shorter set does",
        "a replication restores the variance and finds no gain",
        tuple(
            (f"why_larger_sets_fail_{task}", changes("moments"))
            for task in ("argmax", "dictionary")
        ),
    ),
    Claim(
        "attention is why: that of a shorter set repairs accuracy, whatever the moments",
        "a shorter set that no longer repairs once the moments are those of the large one",
        "a replication: accuracy follows attention on the right token (r = 0.97)",
        tuple(
            (f"why_larger_sets_fail_{task}", changes("shorter", "shorter, lost moments"))
            for task in ("argmax", "dictionary")
        ),
    ),
    Claim(
        "dropout counters dispersion (2510.08341, first version)",
        "the paper's places and rates of dropout, and a ratio below 1 with them",
        "the second version leaves it out of the abstract",
        (("set_complement_search_gpt_constant", searched("dropout", "raw weights")),),
    ),
    Claim(
        "EMA helps where many tokens may follow (2510.08341)",
        "more seeds, or a longer training, in which the gain is gone",
        "none known",
        (
            ("set_complement_search_gpt_constant", searched("ema", "without dropout")),
            ("othello_length_constant", sequences("ema")),
            ("norm_place_decoders_set-complement_constant", sequences("mlp+ema", metric="kl")),
            ("norm_place_decoders_othello_constant", sequences("nonorm+ema")),
        ),
    ),
    Claim(
        "post-norm helps longer inputs (2510.08341, second version)",
        "the paper's formal languages, and another order of the places there",
        "none known",
        (
            (
                "norm_place_decoders_set-complement_constant",
                sequences("mlp+prenorm", "mlp+postnorm", "mlp+subnorm", metric="kl"),
            ),
            (
                "norm_place_decoders_othello_constant",
                sequences("prenorm", "postnorm", "subnorm"),
            ),
        ),
    ),
)


def run_of(folder: Path) -> Any | None:
    """The saved result, if there is one."""
    return saved(folder) if (folder / "result.json").is_file() else None


@table
def claims(root: Path) -> str:
    lines = []
    for claim in CLAIMS:
        for name, find in claim.runs:
            result = run_of(root / "figures" / name)
            if result is None:
                continue
            unit = "settings" if result.kind.endswith("search") else "seeds"
            how = f"{result.task}, {len(result.seeds)} {unit}, {result.settings}"
            for what, words, verdict in find(result):
                cells = (claim.words, f"{what}: {how}", words, verdict, claim.change, claim.others)
                lines.append(" | ".join(cells))
    head = "claim|run| effect [95 % CI]|verdict|what would change our mind|independent evidence"
    return rows(head, lines)
