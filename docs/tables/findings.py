"""The tables of figures/README.md: what was found, from the results saved in figures/."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cells import (
    TABLES,
    baseline,
    beyond,
    cells,
    compared,
    interval,
    minus,
    rows,
    saved,
    spans,
    table,
)

from llmprobe import Result, rank_correlation, wrong_mass
from llmprobe.base.intervals import VERDICTS, estimate
from llmprobe.results.slope_words import LABELS
from llmprobe.results.solved import AT_CHANCE

EXTERNAL = (98.6, 97.1, 94.3, 89.7, 81.3, 70.1, 53.8, 35.7, 22.6, 15.7, 12.4)
"""Accuracy of the baseline of arXiv 2410.01104 at 16 to 16,384 items."""


# The lab: sets


RUNS = {
    "argmax, constant rate": ("table_argmax_constant", ("layernorm",)),
    "argmax, cosine rate": ("table_argmax_cosine", ("layernorm", "baseline+adaptive")),
    "argmax, one head": ("table_ablation_norms", ("standardize", "rmsnorm")),
    "argmax, four heads": ("table_ablation_heads", ("layernorm", "headnorm")),
    "dictionary, cosine rate": ("table_dictionary", ("layernorm",)),
}


@table
def verdicts(root: Path) -> str:
    lines = []
    for name, (folder, variants) in RUNS.items():
        result = saved(root / "figures" / folder)
        for variant in variants:
            frame = compared(result, variant).replace({"verdict": {AT_CHANCE: "undecided"}})
            found = [
                spans(result.lengths, list(frame.length[frame.verdict == word]))
                for word in VERDICTS
            ]
            seeds = f"{frame.n_seeds.min()}"
            lines.append(" | ".join([name, f"`{variant}`", seeds, *found]))
    heads = "|".join(f"{word} at" for word in VERDICTS)
    return rows(f"run|variant| seeds|{heads}", lines)


@table
def argmax(root: Path) -> str:
    constant, cosine = (saved(root / f"figures/table_argmax_{x}") for x in ("constant", "cosine"))
    columns = [
        [f"{n:,}" for n in cosine.lengths],
        [f"{x:.1f}" for x in EXTERNAL],
        baseline(constant),
        cells(compared(constant, "layernorm")),
        baseline(cosine),
        cells(compared(cosine, "layernorm")),
        cells(compared(cosine, "baseline+adaptive")),
    ]
    head = " N| external| constant: baseline| LayerNorm − baseline| cosine: baseline"
    head += "| LayerNorm − baseline| adaptive − baseline"
    return rows(head, map(" | ".join, zip(*columns, strict=True)))


@table
def dictionary(root: Path) -> str:
    result = saved(root / "figures/table_dictionary")
    columns = [
        [f"{n:,}" for n in result.lengths],
        baseline(result),
        cells(compared(result, "layernorm")),
    ]
    return rows(" N| baseline| LayerNorm − baseline", map(" | ".join, zip(*columns, strict=True)))


@table
def ablation(root: Path) -> str:
    one, four = (saved(root / f"figures/table_ablation_{x}") for x in ("norms", "heads"))
    columns = [
        [f"{n:,}" for n in one.lengths],
        baseline(one),
        cells(compared(one, "standardize")),
        cells(compared(one, "rmsnorm")),
        baseline(four),
        cells(compared(four, "layernorm")),
        cells(compared(four, "headnorm")),
    ]
    head = " N| one head: baseline| standardize − baseline| rmsnorm − baseline"
    head += "| four heads: baseline| layernorm − baseline| headnorm − baseline"
    return rows(head, map(" | ".join, zip(*columns, strict=True)))


@table
def vanishing(root: Path) -> str:
    lines = []
    for name, (folder, _) in RUNS.items():
        result = saved(root / "figures" / folder)
        for row in result.tail_frame().itertuples():
            slope = interval(row.slope, row.low, row.high, "+.2f")
            lines.append(f"{name} | `{row.variant}` | {slope} | {row.global_variance_ratio:.2f}")
    return rows("run|variant| slope of the variance| global variance, 16,384 over 16", lines)


@table
def shift(root: Path) -> str:
    result = saved(root / "figures/figure_3_global_shift")
    frame = result.shift_frame()
    drifts = result.drift_frame().set_index(["variant", "length"])
    lines = []
    for (variant, length), part in frame.groupby(["variant", "length"], sort=False):
        if length in (frame.length.min(), frame.length.max()):
            by = part.set_index("statistic")
            drift = interval(*drifts.loc[(variant, length), ["rms", "low", "high"]], ".4f")
            drift = "–" if length == result.reference else drift
            spread = interval(*by.loc["global_variance", ["mean", "low", "high"]], ".4f")
            lines.append(f"`{variant}` | {length:,} | {spread} | {drift}")
    return rows("variant| N| global variance| drift of the global mean, rms", lines)


@table
def weights(root: Path) -> str:
    result = saved(root / "figures/figure_4_attention_weights")
    lines = []
    for number, variant in enumerate(result.variants):
        largest = result.top_weights[number].mean(axis=1)  # (lengths, rank)
        entropy = estimate(result.entropy[number, :, -1]).mean
        more = estimate(result.entropy[number, :, -1] - result.entropy[0, :, -1])
        against = interval(more.mean, more.low, more.high, "+.3f") if number else "–"
        lines.append(
            f"`{variant}` | {largest[0, 0]:.2f} | {largest[-1, 0]:.3f} | "
            f"{largest[-1].sum():.0%} | {entropy:.2f} | {against}"
        )
    head = "variant| largest weight, 16| largest weight, 16,384| 16 largest, 16,384"
    return rows(head + "| entropy (nats), 16,384| against the baseline", lines)


@table
def proposition(root: Path) -> str:
    lines = []
    for task in ("argmax", "dictionary"):
        for query in ("fixed", "free"):
            folders = [f"proposition_1/{task}_{query}_{seed}" for seed in range(4)]
            found = [saved(root / "figures" / name).decay_frame().iloc[0] for name in folders]
            slopes = (interval(x.slope, x.slope_low, x.slope_high, "+.2f") for x in found)
            lines.append(" | ".join([task, query, *slopes]))
    return rows("task|query| seed 0| seed 1| seed 2| seed 3", lines)


# Pretrained models


@table
def heads(root: Path) -> str:
    one, several, free = (
        saved(root / f"figures/smollm2_heads{x}").decay_frame().set_index("head")
        for x in ("", "_queries", "_random")
    )

    def cell(row: pd.Series, slope: str) -> str:
        return interval(row[slope], row[f"{slope}_low"], row[f"{slope}_high"], "+.2f")

    lines = [
        f"{head} | {cell(one.loc[head], 'slope')} {one.label[head]} | "
        f"{cell(row, 'slope')} | {cell(row, 'slope_within')} {row.label} | "
        f"{cell(free.loc[head], 'slope')} {free.label[head]}"
        for head, row in several.iterrows()
    ]
    return rows(
        " head| one last token| 16 last tokens: total| within| any last token, random", lines
    )


@table
def depth(root: Path) -> str:
    lines = []
    for name in ("head_decay_map", "train_builtin_model"):
        result = saved(root / "figures" / name)
        frame = result.decay_frame()
        parts = np.array_split(np.unique(frame.layer), 5)
        for part in parts:
            some = frame[frame.layer.isin(part)]
            layers = f"{part[0]}" if len(part) == 1 else f"{part[0]} to {part[-1]}"
            counts = " | ".join(f"{(some.label == label).sum()}" for label in LABELS)
            slope = some.slope_within
            slopes = minus(f"{slope.min():+.2f} | {slope.median():+.2f} | {slope.max():+.2f}")
            lines.append(f"{model_name(result)} | {layers} | {len(some)} | {counts} | {slopes}")
    return rows(f"model| layers| heads| {'| '.join(LABELS)}| steepest| median| highest", lines)


@table
def one_query(root: Path) -> str:
    """The first layer's heads, and all: a slope and its terms, if all prompts end in one token."""
    frame = saved(root / "figures/head_decay_map_attention").head_frame()
    names = [f"slope_{name}" for name in ("total", "dispersion", "values", "coherence")]
    first = frame[frame.layer == 0].set_index("head")[names]
    cells = {f"layer 0, head {head}": row for head, row in first.iterrows()}
    cells["270 heads, median"] = frame[names].median()
    lines = [
        f"{name} | {minus(' | '.join(f'{slope:+.2f}' for slope in row))}"
        for name, row in cells.items()
    ]
    return rows("head| slope| = dispersion| + values| + coherence", lines)


def model_name(result: Result) -> str:
    return re.sub(r"\.Q\w+\.gguf$", "", result.provenance.model)


@table
def terms(root: Path) -> str:
    frame = saved(root / "figures/smollm2_terms").head_frame()
    names = ("total", "dispersion", "values", "coherence")
    lines = []
    for part in (np.unique(frame.layer), *np.array_split(np.unique(frame.layer), 5)):
        some = frame[frame.layer.isin(part)]
        medians = " | ".join(f"{some[f'slope_{name}'].median():+.2f}" for name in names)
        spreads = (some.slope_dispersion_high < 0).sum()
        falls, rises = (some.slope_total_high < 0).sum(), (some.slope_total_low > 0).sum()
        decides = " | ".join(f"{(some.decides == name).sum()}" for name in names[1:])
        counts = f"{len(some)} | {spreads} | {falls} | {rises}"
        lines.append(f"{part[0]} to {part[-1]} | {counts} | {minus(medians)} | {decides}")
    head = "layers| heads| disperse| fall| rise| slope| = dispersion| + values| + coherence"
    return rows(f"{head}| dispersion decides| values decide| coherence decides", lines)


CHANGE, VERSUS = (
    [f"{name}{end}" for end in ("", "_low", "_high")] for name in ("change", "versus_random")
)


def of_both_models(make: Callable[[Path, str], str]) -> Callable[[Path, str], str]:
    """Register a table of `does_it_hurt` for SmolLM2 under the function's name, and for Qwen."""
    for ending in ("", "_qwen"):
        TABLES[make.__name__ + ending] = partial(make, run=f"does_it_hurt{ending}")
    return make


@of_both_models
def harm(root: Path, run: str) -> str:
    """Without classes of heads at all positions."""
    result = saved(root / f"figures/{run}/classes")
    early, late = 64, max(result.lengths)
    columns = [(early, CHANGE), (late, CHANGE), (late, VERSUS)]
    head = f"class| heads| loss without it, {early // 2 + 1} to {early} tokens"
    head += (
        f"| {late // 2 + 1} to {late:,} tokens| against random heads, {late // 2 + 1} to {late:,}"
    )
    return rows(head, _classes(result, columns))


@of_both_models
def harm_targets(root: Path, run: str) -> str:
    """Without classes of heads at the last tokens."""
    result = saved(root / f"figures/{run}/targets")
    columns = [*((n, CHANGE) for n in result.lengths), (result.lengths[-1], VERSUS)]
    contexts = [f"{n - result.same_targets:,}" for n in result.lengths]
    head = "class| heads| loss without it, " + " tokens of context| ".join(contexts)
    return rows(
        f"{head} tokens of context| against random heads, {contexts[-1]}", _classes(result, columns)
    )


def _classes(result: Any, columns: list[tuple[int, list[str]]]) -> list[str]:
    """A line for each class, the one that is needed most first."""
    frame = result.to_frame()
    lines = []
    for name in frame[~frame.is_control].sort_values("change", ascending=False)["class"].unique():
        part = frame[frame["class"] == name].set_index("length")
        cells = [interval(*part.loc[length, names], "+.3f") for length, names in columns]
        lines.append(" | ".join([name, f"{part.n_heads.iloc[0]}", *cells]))
    return lines


@of_both_models
def harm_links(root: Path, run: str) -> str:
    """Rank correlations over heads."""
    names = {
        "slope": "slope of the variance",
        "slope_dispersion": "slope of dispersion",
        "source": "attention on the source",
    }
    heads = pd.read_csv(root / f"figures/{run}/heads.csv")
    changes = [name for name in heads if name.startswith("change_")]
    lines = []
    for name, words in names.items():
        found = [rank_correlation(*heads[[name, x]].dropna().to_numpy().T) for x in changes]
        cells = [interval(rho, low, high, "+.2f") for rho, low, high, _ in found]
        lines.append(" | ".join([words, *cells]))
    contexts = "| ".join(
        f"{int(name.removeprefix('change_')):,} tokens of context" for name in changes
    )
    return rows(f"Spearman with the loss without a head [95 % CI]| {contexts}", lines)


@table
def helping(root: Path) -> str:
    """Each remedy at its best dose and the longest prompts, in the runs that there are."""
    folders = sorted(path.parent for path in (root / "figures").glob("what_helps*/result.json"))
    lines = []
    for folder in folders:
        result = saved(folder)
        rope = result.provenance.arguments["rope"]
        words = f"{model_name(result)} | {result.context_length:,} | {result.lengths[-1]:,}"
        words += f", {rope}" if rope else ""
        for name in result.names():
            best = result.best(name)
            ends = (result.change, result.change_low, result.change_high)
            versus = (result.versus_sham, result.versus_sham_low, result.versus_sham_high)
            cells = [interval(*(x[0, best, -1] for x in some), "+.3f") for some in (ends, versus)]
            dose = f"{result.doses[best]:g}"
            lines.append(
                f"{words} | `{name}` | {dose} | {' | '.join(cells)} | {result.verdict(name)}"
            )
    return rows(
        "model| L| longest prompt|remedy| best dose| change (nats)| against its sham|verdict",
        lines,
    )


# The lab: sequences


@table
def complement(root: Path) -> str:
    lines = []
    for width in range(12, 18):
        result = saved(root / f"figures/set_complement_theory/width_{width}")
        kl = result.kl[0, :, :2].max(axis=1)
        low = kl < 0.0001
        ends = "– | –"
        if low.any():
            gaps, n = result.gap[0][low], result.vocab
            slopes = np.polyfit(np.log(result.lengths), np.log(gaps).T, 1)[0]
            theory = [wrong_mass(2 * gap[1], result.lengths, vocab=n) for gap in gaps]
            off = np.abs(result.illegal_mass[0][low] - theory).max()
            ends = minus(f"{slopes.min():.3f} to {slopes.max():.3f} | {off:.3f}")
        lines.append(f"{width} | {kl.min():.1e} | {low.sum()} of {kl.size} | {ends}")
    head = " width| KL, best seed| seeds below 0.0001 nats| slope of their gap"
    return rows(head + "| mass, largest difference from theory", lines)


def searched(root: Path, network: str) -> str:
    frame = saved(root / f"figures/set_complement_search_{network}_constant").effect_frame()
    lines = [
        f"{row.effect}, {row.where} | "
        + f"{row.effect_size:.3f} [{row.low:.3f}, {row.high:.3f}] | {row.helps:.0%} | "
        + row.verdict
        for row in frame.itertuples()
    ]
    return rows("effect| ratio of KL [95 % CI]| helps in|verdict", lines)


@table
def search_gpt(root: Path) -> str:
    return searched(root, "gpt")


@table
def search_attention(root: Path) -> str:
    return searched(root, "attention")


@table
def correlations(root: Path) -> str:
    frame = saved(root / "figures/set_complement_search_gpt_constant").correlation_frame()
    lines = [
        f"{row.parameter.replace('_', ' ')} | {row.outcome} | "
        + interval(row.rho, row.low, row.high, "+.2f")
        for row in frame.itertuples()
    ]
    return rows("setting|KL, or ratio of KL, of| Spearman [95 % CI]", lines)


@table
def othello(root: Path) -> str:
    names = {
        "illegal_top1": "illegal first choices, %",
        "illegal_mass": "illegal mass, %",
        "kl": "KL, nats",
    }
    lines = []
    for rate in ("constant", "cosine"):
        result = saved(root / f"figures/othello_length_{rate}")
        frame = result.beyond_frame().set_index(["metric", "variant"])
        for metric, name in names.items():
            mean = frame.loc[(metric, "baseline"), "mean"]
            scale, form = (100, ".1f") if metric.startswith("illegal") else (1, ".3f")
            cells = [f"{scale * mean:{form}}"]
            cells += [" ".join(beyond(result, variant, metric)) for variant in ("ema", "bema")]
            lines.append(" | ".join([rate, name, *cells]))
    return rows("learning rate|beyond training| raw| EMA − raw| BEMA − raw", lines)
