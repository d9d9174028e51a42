"""The tables of README.md and benchmarks/README.md."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from cells import at, beyond, brought_back, effect, interval, rows, saved, table
from claims import parts, run_of, sequences, variants

from llmprobe.results.slope_words import LABELS


@table
def lab(root: Path) -> str:
    folder = root / "figures"
    cosine, lookup, games = (
        saved(folder / name)
        for name in ("table_argmax_cosine", "table_dictionary", "othello_length_constant")
    )
    argmax, dictionary = (saved(folder / f"anchor_{x}_main") for x in ("argmax", "dictionary"))
    search = saved(folder / "set_complement_search_gpt_constant")
    raw = games.beyond_frame().set_index(["metric", "variant"]).loc["illegal_top1", "baseline"]

    def norms(name: str, short: Any, long: Any) -> str:
        return (
            "LayerNorm in {}, 1,024 items: {} points after {:,} steps with a falling rate, "
            "**{}**; {} after {:,} with a constant one, **{}**. There clipped gradients alone: {}, "
            "**{}**."
        ).format(name, *trained(short), *trained(long), *at(long, "clipped"))

    def trained(result: Any) -> tuple[str, int, str]:
        words, verdict = at(result, "layernorm")
        return words, result.steps, verdict

    lines = [
        norms("argmax retrieval", cosine, argmax),
        norms("dictionary lookup", lookup, dictionary),
        "A colder softmax at test time (`adaptive`), argmax: {} points, **{}**; {}, **{}**.".format(
            *at(cosine, "baseline+adaptive"), *at(argmax, "adaptive")
        ),
        f"EMA on Othello, {100 * raw['mean']:.1f} % illegal first choices beyond training: "
        + "{} points, **{}**; BEMA {}, **{}**.".format(
            *beyond(games, "ema"), *beyond(games, "bema")
        ),
        "Dropout on set complement, 64 settings of a GPT: KL {}, **{}**; EMA {}, **{}**.".format(
            *effect(search, "dropout", "raw weights"), *effect(search, "ema")
        ),
    ]
    return "".join(f"- {line}\n" for line in lines)


PROTOCOLS = {
    "WikiText unigrams, all end in `cl`": ("smollm2_heads", "slope"),
    "WikiText unigrams, 16 last tokens": ("smollm2_heads_queries", "slope"),
    "the same, within a last token": ("smollm2_heads_queries", "slope_within"),
    "random tokens, any last token (default)": ("smollm2_heads_random", "slope"),
}
"""How prompts were made, with the saved result and the slope of it."""


@table
def protocol(root: Path) -> str:
    lines = []
    for name, (folder, slope) in PROTOCOLS.items():
        frame = saved(root / "figures" / folder).decay_frame().set_index("head")
        ends = [slope, f"{slope}_low", f"{slope}_high"]
        cells = (interval(*frame.loc[head, ends], "+.2f") for head in (0, 3))
        lines.append(" | ".join([name, *cells]))
    return rows("256 prompts, 16 to 2,048 tokens| head 0| head 3", lines)


def _verdict(result: Any) -> str:
    """Which remedies help."""
    names = result.names()
    helping = [name for name in names if result.verdict(name) == "helps"]
    if len(helping) == len(names):
        return f"all {len(names)} colder softmaxes help"
    return f"{', '.join(helping) or 'none'} of {len(names)} helps"


@table
def helps(root: Path) -> str:
    """What helps a pretrained model, in three lines."""

    def run(name: str) -> Any:
        return saved(root / f"figures/what_helps{name}")

    def change(name: str, remedy: str = "logn") -> str:
        result = run(name)
        best = result.best(remedy)
        ends = (result.change, result.change_low, result.change_high)
        return interval(*(x[0, best, -1] for x in ends), "+.3f")

    return (
        f"- Inside the trained context: {_verdict(run('_inside'))} SmolLM2.\n"
        f"- Beyond it: a colder softmax (`logn`), once positions are repaired. "
        f"{change('_beyond_yarn')} nats at twice SmolLM2's context, {change('_yarn')} at 16 times "
        f"builtin's; without repair {change('_beyond')} and {change('')}.\n"
        f"- Giving heads back the variance that they lose hurts: {change('', 'restore')}.\n"
    )


@table
def recipes(root: Path) -> str:
    folder = root / "figures"

    def slopes(name: str) -> pd.DataFrame:
        return saved(folder / name).decay_frame()

    def holding(task: str) -> int:
        parts = [slopes(f"proposition_1/{task}_fixed_{seed}").iloc[0] for seed in range(4)]
        return sum(part.slope_low <= -0.5 <= part.slope_high for part in parts)

    def whole(name: str, slope: str = "slope") -> str:
        ends = [slope, f"{slope}_low", f"{slope}_high"]
        return interval(*slopes(name).loc[0, ends], "+.2f")

    def labeled(name: str) -> str:
        """How many heads lose variance, by their labels."""
        counts = slopes(name).label.value_counts()
        known = [f"{counts[label]} {label}" for label in LABELS if label in counts]
        return f"of {counts.sum()}, {', '.join(known)}"

    enough = [
        saved(folder / f"set_complement_theory/width_{width}").kl[0, :, :2].max(axis=1) < 1e-4
        for width in (14, 15)
    ]
    gpt, alone = (
        saved(folder / f"set_complement_search_{x}_constant") for x in ("gpt", "attention")
    )
    games = saved(folder / "othello_length_constant")
    far, repaired = (saved(folder / f"what_helps{name}") for name in ("", "_yarn"))
    harm = saved(folder / "does_it_hurt/classes").key_frame().set_index("class")

    def versus(name: str) -> str:
        ends = ["versus_random", "versus_random_low", "versus_random_high"]
        return interval(*harm.loc[name, ends], "+.2f")

    found = {
        "proposition_1": (
            "with one query, is the slope −0.5?",
            f"argmax: in the CI of {holding('argmax')} of 4 seeds; dictionary: of "
            f"{holding('dictionary')} of 4",
        ),
        "figure_1_llm_variance": (
            "does SmolLM2's first layer fall as N^−0.5?",
            f"over all prompts it does not fall, {whole('figure_1_llm_variance')}; within a last "
            f"token {whole('figure_1_llm_variance', slope='slope_within')}; single heads do",
        ),
        "head_decay_map": (
            "which of SmolLM2's heads lose variance?",
            labeled("head_decay_map"),
        ),
        "set_complement_theory": (
            "does width v − 1 suffice, v − 2 not?",
            f"confirmed: {enough[1].sum()} of {enough[1].size} seeds, {enough[0].sum()} of "
            f"{enough[0].size}",
        ),
        "set_complement_search": (
            "do dropout, EMA, BEMA help?",
            f"GPT: {effect(gpt, 'dropout', 'raw weights')[1]}, {effect(gpt, 'ema')[1]}, "
            f"{effect(gpt, 'bema')[1]}; attention alone: "
            f"{effect(alone, 'dropout', 'raw weights')[1]}, {effect(alone, 'ema')[1]}, "
            f"{effect(alone, 'bema')[1]}",
        ),
        "othello_length": (
            "do EMA and BEMA help later moves?",
            f"EMA {beyond(games, 'ema')[1]}, BEMA {beyond(games, 'bema')[1]}",
        ),
        "does_it_hurt": (
            "does SmolLM2 need the heads that lose variance?",
            f"less than random ones, {versus('falling')} nats; flat heads more, {versus('flat')}; "
            "head by head no link",
        ),
        "what_helps": (
            "do remedies against dispersion help?",
            f"with repaired positions {_verdict(repaired)} builtin beyond its context; without, "
            f"{_verdict(far)}",
        ),
    }
    found |= norm_recipes(folder)
    lines = (
        f"[`{name}`](recipes/{name}.py) | {question} | {answer}"
        for name, (question, answer) in found.items()
    )
    return rows("recipe|question|verdict", lines)


def norm_recipes(folder: Path) -> dict[str, tuple[str, str]]:
    """The recipes on norms, as far as their runs are there: question and verdict."""

    def words(name: str, find: Callable[[Any], Any], what: str = "") -> str:
        result = run_of(folder / name)
        if result is None:
            return ""
        return what + ", ".join(f"{of.partition(',')[0]} {word}" for of, _, word in find(result))

    tasks = ("argmax", "dictionary")
    answers = {
        "anchor": (
            "do LayerNorm, or clipping, help at 100,000 steps?",
            [words(f"anchor_{x}_main", variants("layernorm", "clipped"), f"{x}: ") for x in tasks],
        ),
        "norm_search": (
            "in how many settings does a norm help?",
            [words(f"norm_search_{x}", parts("layernorm", "headnorm"), f"{x}: ") for x in tasks],
        ),
        "why_larger_sets_fail": (
            "what brings back the accuracy that 1,024 items lose?",
            [
                f"{task}: {brought_back(result, 'moments', 'shorter')}"
                for task in tasks
                if (result := run_of(folder / f"why_larger_sets_fail_{task}")) is not None
            ],
        ),
        "norm_place_decoders": (
            "does post-norm help decoders?",
            [
                words(
                    "norm_place_decoders_set-complement_constant",
                    sequences("mlp+postnorm", metric="kl"),
                    "set complement: ",
                ),
                words("norm_place_decoders_othello_constant", sequences("postnorm"), "Othello: "),
            ],
        ),
    }
    known = {name: "; ".join(filter(None, said)) for name, (_, said) in answers.items()}
    return {name: (answers[name][0], said) for name, said in known.items() if said}


@table
def cost(root: Path) -> str:
    found = findings(root)
    peers = ("hooks", "nnsight", "TransformerLens")

    def line(work: str, others: dict[str, str]) -> str:
        first, *_ = (found[name] for name in others.values())
        cells = []
        for other, name in others.items():
            ratio = found[name]["ratio"]
            factor = times(ratio if found[name]["at_least"] else 1 / ratio)
            cells.append(
                f"{other} {amount(found[name]['theirs'], found[name]['unit'])} ({factor}×)"
            )
        return f"{work} | {amount(first['ours'], first['unit'])} | {', '.join(cells)}"

    def early(shape: str) -> dict[str, str]:
        return {peer: f"{shape}: times as fast as {peer}, early stop" for peer in peers}

    layer_0 = early("1B, layer 0")
    layer_0["TransformerLens, to 4,096 tokens,"] = layer_0.pop("TransformerLens")
    rest = "8192 tokens: {} over output_attentions"
    lines = [
        line("layer 0 at Llama-3.2-1B's shape, lengths 16..16384", layer_0),
        line("all layers of SmolLM2-135M, lengths 16..2048", early("SmolLM2, all layers")),
        line(
            "attention rows, 8,192 tokens: time",
            {"`output_attentions`": f"rows, {rest.format('time')}"},
        ),
        line(
            "attention rows, 8,192 tokens: memory",
            {"`output_attentions`": f"rows, {rest.format('memory')}"},
        ),
        line(
            "the lab: the same steps of 32 seeds",
            {"a plain loop": "training 32 seeds: times as fast as a plain loop"},
        ),
    ]
    return rows("work| llmprobe|others, and how many times as much", lines)


def findings(root: Path) -> dict[str, dict]:
    document = json.loads((root / "benchmarks/baseline.json").read_text())
    return {finding["name"]: finding for finding in document["findings"]}


def amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    if unit != "s":
        return f"{value:.3g}"
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


@table
def bench(root: Path) -> str:
    lines = []
    for finding in findings(root).values():
        theirs = finding["theirs"]
        lines.append(
            f"{finding['case']} | {finding['name']} | {amount(finding['ours'], finding['unit'])} | "
            f"{'–' if theirs is None else amount(theirs, finding['unit'])} | "
            f"{times(finding['ratio'])} | {finding['note']}"
        )
    return rows("case|measurement| llmprobe| other| ratio|notes", lines)
