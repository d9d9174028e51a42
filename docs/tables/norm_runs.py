"""Sections of figures/README.md on norms, for the runs that are saved there.

A section has its heading, its figure and its tables. Where a run is not there, so is no section.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cells import baseline, brought_back, cells, compared, interval, minus, rows, spans, table
from claims import run_of
from findings import EXTERNAL

from llmprobe.base.intervals import VERDICTS, verdict

TASKS = ("argmax", "dictionary")
MARGIN = 1.0
"""Points, fixed before the runs."""


@table
def norms(root: Path) -> str:
    return "".join(section for part in (anchor, search, why, decoders) for section in part(root))


def anchor(root: Path) -> Iterator[str]:
    for task in TASKS:
        for part in ("main", "projected", "residual"):
            name = f"anchor_{task}_{part}"
            result = run_of(root / "figures" / name)
            if result is not None:
                yield (
                    f"\n### {task}, {result.steps:,} steps: {result.variants[0]} and others\n\n"
                    f"![Accuracy against set size]({name}.png)\n\n"
                    f"{len(result.seeds)} seeds, {result.settings}. Accuracy in %, differences to "
                    f"`{result.variants[0]}` in points with 95 % CI over seeds; a margin of "
                    f"{MARGIN:g} point was fixed before.\n\n{_by_length(result)}\n"
                    + _by_step(result)
                )
                if task == "argmax" and part == "main":
                    yield _against_external(result)


def _by_length(result: Any) -> str:
    others = result.variants[1:]
    columns = [[f"{n:,}" for n in result.lengths], baseline(result)]
    for frame in (compared(result, name) for name in others):
        pairs = zip(cells(frame), frame.verdict, strict=True)
        columns.append([f"{cell} {word}" for cell, word in pairs])
    head = "| ".join([" N", f"`{result.variants[0]}`", *(f"`{name}`" for name in others)])
    return rows(head, map(" | ".join, zip(*columns, strict=True)))


def _by_step(result: Any) -> str:
    """Differences at 1,024 items, or the longest, by training step."""
    length = 1024 if 1024 in result.lengths else result.lengths[-1]
    frame = result.step_frame()
    frame = frame[frame.length == length].set_index(["variant", "step"])
    first, *others = result.variants
    lines = []
    for step in (*result.score_steps, result.steps):
        found = [f"{step:,}", f"{100 * frame.loc[(first, step), 'mean']:.1f}"]
        for name in others:
            row = frame.loc[(name, step)]
            ends = (100 * row[x] for x in ("difference", "difference_low", "difference_high"))
            found.append(f"{interval(*ends)} {row.verdict}")
        lines.append(" | ".join(found))
    head = f" step, {length:,} items| `{first}`| " + "| ".join(f"`{name}`" for name in others)
    return f"The same at {length:,} items, by training step:\n\n{rows(head, lines)}"


def _against_external(result: Any) -> str:
    """Our baseline in every cell that arXiv 2410.01104 prints."""
    summary = result.summary_frame()
    own = summary[summary.variant == result.variants[0]].set_index("length")
    printed = dict(zip((2**n for n in range(4, 15)), EXTERNAL, strict=True))
    words = {"confirmed": "above", "reversed": "below"}
    lines = []
    for length in (n for n in printed if n in own.index):
        ends = [100 * own.loc[length, x] - printed[length] for x in ("mean", "low", "high")]
        word = verdict(ends[1], ends[2], margin=MARGIN)
        ours = f"{100 * own.loc[length, 'mean']:.1f}"
        cells = (f"{length:,}", f"{printed[length]:.1f}", ours, interval(*ends))
        lines.append(" | ".join([*cells, words.get(word, word)]))
    head = " N| arXiv 2410.01104| ours| difference [95 % CI over our seeds]|"
    return (
        "\nAgainst the accuracies that arXiv 2410.01104 prints; how far its own seeds scatter is "
        f"not known:\n\n{rows(head, lines)}"
    )


def search(root: Path) -> Iterator[str]:
    for task in TASKS:
        name = f"norm_search_{task}"
        result = run_of(root / "figures" / name)
        if result is None:
            continue
        lines = []
        for row in result.effect_frame().itertuples():
            words = interval(100 * row.difference, 100 * row.low, 100 * row.high)
            counts = f"{row.better} | {row.worse} | {row.n_settings}"
            lines.append(f"`{row.variant}` | {row.times} | {words} | {counts} | {row.verdict}")
        effects = rows("part| times| effect, points| gain| lose| settings|verdict", lines)
        tree = rows(
            "part|settings| n| effect, points| p of the split",
            (
                f"`{row.variant}` | {row.settings.replace('_', ' ')} | {row.n_settings} | "
                + interval(100 * row.difference, 100 * row.low, 100 * row.high)
                + (f" | {row.p:.3f}" if row.p == row.p else " | –")
                for row in result.tree_frame().itertuples()
            ),
        )
        decided = [
            f"`{row.variant}` | {row.parameter.replace('_', ' ')} | "
            + interval(row.rho, row.low, row.high, "+.2f")
            for row in result.correlation_frame().itertuples()
            if row.significant
        ]
        ranks = "No setting has a rank correlation with an effect that is significant (Holm).\n"
        if decided:
            ranks = "Settings whose rank correlation with an effect is significant (Holm):\n\n"
            ranks += rows("part|setting| Spearman [95 % CI]", decided)
        yield (
            f"\n### {task}: {len(result.seeds)} random settings\n\n![Effects by length]({name}.png)"
            f"\n\nTrained for {result.settings}, each setting with and without a part from one "
            f"seed; tested at multiples of its training length.\n\n{effects}\nGroups of settings "
            f"whose effects differ:\n\n{tree}\n{ranks}"
        )


def why(root: Path) -> Iterator[str]:
    for task in TASKS:
        name = f"why_larger_sets_fail_{task}"
        result = run_of(root / "figures" / name)
        if result is None:
            continue
        frame = result.repair_frame()
        lines = []
        for (condition, variant), part in frame.groupby(["condition", "variant"], sort=False):
            last = part.iloc[-1]
            found = [
                spans(result.beyond, list(part.length[part.verdict == word])) for word in VERDICTS
            ]
            words = interval(100 * last.difference, 100 * last.low, 100 * last.high)
            lines.append(" | ".join([condition, f"`{variant}`", words, *found]))
        heads = "|".join(f"{word} at" for word in VERDICTS)
        repairs = rows(f"change|variant| at {result.beyond[-1]:,} items, points|{heads}", lines)
        predictors = rows(
            "over|variant|predictor| Spearman [95 % CI]",
            (
                f"{row.scope} | `{row.variant}` | {row.predictor.replace('_', ' ')} | "
                + interval(row.rho, row.low, row.high, "+.2f")
                for row in result.predictor_frame().itertuples()
            ),
        )
        yield (
            f"\n### {task}: what repairs accuracy on larger sets\n\n"
            f"![Accuracy under changes at test time]({name}.png)\n\n{_in_a_sentence(result)}\n\n"
            f"{repairs}\nWhat predicts being right, within lengths:\n\n{predictors}"
        )


def _in_a_sentence(result: Any) -> str:
    length = 1024 if 1024 in result.lengths else result.lengths[-1]
    return (
        f"{len(result.seeds)} seeds of the networks above. From {result.train_lengths[1]} to "
        f"{length:,} items `{result.variants[0]}` loses accuracy. Changes at test time bring back: "
        f"{brought_back(result, *result.conditions[1:])}."
    )


def decoders(root: Path) -> Iterator[str]:
    for task in ("set-complement", "othello"):
        name = f"norm_place_decoders_{task}_constant"
        result = run_of(root / "figures" / name)
        if result is None:
            continue
        lines = []
        frame = result.beyond_frame()
        for row in frame[frame.metric != "gap"].itertuples():
            scale, form = (100, "+.1f") if row.metric.startswith("illegal") else (1, "+.3f")
            ends = (row.difference, row.difference_low, row.difference_high)
            against = interval(*(scale * x for x in ends), form) if row.verdict else "–"
            mean = f"{scale * row.mean:.{3 if scale == 1 else 1}f}"
            words = f"{row.metric.replace('_', ' ')} | `{row.variant}` | {mean} | {against}"
            lines.append(f"{words} | {row.verdict or '–'}")
        spread = result.compare_frame("entropy")
        last = spread[spread.length == result.lengths[-1]]
        entropy = rows(
            "variant| entropy of attention against the first, nats",
            (
                f"`{row.variant}` | {interval(row.difference, row.low, row.high, '+.3f')}"
                for row in last.itertuples()
            ),
        )
        metrics = rows("beyond training|variant| mean| against the first|verdict", lines)
        yield (
            f"\n### {task}: the place of the norm in a decoder\n\n![KL by length]({name}.png)\n\n"
            f"{len(result.seeds)} seeds, {result.settings}.\n\n{metrics}\nAt "
            + minus(f"{result.lengths[-1]} {result.unit}:\n\n{entropy}")
        )
