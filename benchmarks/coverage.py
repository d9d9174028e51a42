"""How often 95 % intervals of slopes hold the truth, for populations whose truth is known.

    python benchmarks/coverage.py                               # made-up populations
    python benchmarks/coverage.py --model FOLDER_OR_GGUF --layers 0

A population is many prompts: outputs (prompts, heads, lengths, features). Its own slopes are the
truth. Samples of n prompts are drawn from it with replacement, each gets the interval that
`probe_variance` would give it, and the share of intervals that hold the truth is counted by head.
The heads of a model are a population as well: 4,000 of its random prompts, run once. With
--queries, prompts of 128 query tokens: samples have 16 of these, and n / 16 prompts of each.
`docs/coverage.md` has the table.
"""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
import typer

from llmprobe import capture_attention, load_model, make_prompts
from llmprobe.base.components import GroupMoments, over_features
from llmprobe.base.jackknife import jackknife
from llmprobe.base.trends import fit_trends, line_weights

LENGTHS = (16, 64, 256)
SIZES = (16, 32, 64, 256)
N_GROUPS = 16


def gaussian(rng, n):
    """Eight heads: four of one feature, four of eight; half of the noise is shared by lengths."""
    x = rng.normal(size=(n, 8, 3, 8)) + rng.normal(size=(n, 8, 1, 8))
    x[:, :4, :, 1:] = 0
    return x


def heavy(rng, n):
    """Student's t with five degrees of freedom, times a lognormal scale for each prompt."""
    x = rng.standard_t(5, size=(n, 8, 3, 8)) * np.exp(0.5 * rng.normal(size=(n, 8, 3, 1)))
    x[:, :4, :, 1:] = 0
    return x


def zipf(rng, n, n_words=2000, n_features=8):
    """Softmax attention over words by Zipf's law; each word has its logit and its value."""
    chance = 1 / np.arange(1, n_words + 1)
    heads = []
    for spread in (0.5, 1, 2, 3):
        logits = spread * rng.normal(size=n_words)
        values = rng.normal(size=(n_words, n_features))
        words = rng.choice(n_words, size=(n, max(LENGTHS)), p=chance / chance.sum())
        weights = np.exp(logits[words])
        heads.append(
            [
                np.einsum("pn,pnf->pf", weights[:, :k], values[words[:, :k]])
                / weights[:, :k].sum(axis=1, keepdims=True)
                for k in LENGTHS
            ]
        )
    return np.array(heads).transpose(2, 0, 1, 3)


def heads_of(loaded, layers, n, query_tokens=()):
    """The heads of a model: (prompts, heads, lengths, features)."""
    prompts = make_prompts(
        "random",
        n_prompts=n,
        lengths=LENGTHS,
        seed=99,
        tokenizer=loaded.tokenizer,
        vocab_size=min(loaded.vocab_size, len(loaded.tokenizer)),
        bos_token_id=loaded.bos_token_id if loaded.adds_bos else None,
        **({"query": "fixed", "n_queries": len(query_tokens)} if query_tokens else {}),
    )
    found = []
    for length in LENGTHS if query_tokens else LENGTHS[-1:]:
        places = [length - 1] if query_tokens else [k - 1 for k in LENGTHS]
        parts = []
        for at in range(0, n, 64):
            batch = prompts.batch(range(at, min(n, at + 64)), length)
            with (
                torch.inference_mode(),
                capture_attention(
                    loaded, layers, positions=places, at="heads", stop=True
                ) as captured,
            ):
                loaded.model(batch.to(loaded.device))
            parts.append(torch.cat([captured[k] for k in sorted(captured)], dim=2).cpu())
        found.append(torch.cat(parts).double().numpy())
    return np.concatenate(found, axis=1).swapaxes(1, 2)


def samples(population, n, rng, n_queries) -> Iterator[GroupMoments]:
    """Moments of groups of n prompts, without end."""
    while True:
        if n_queries:  # prompt i of the population has query i mod n_queries
            queries = rng.integers(n_queries, size=(N_GROUPS, 1))
            rows = rng.integers(len(population) // n_queries, size=(N_GROUPS, n // N_GROUPS))
            groups = population[rows * n_queries + queries]
        else:
            drawn = population[rng.integers(len(population), size=n)]
            groups = drawn.reshape(n // N_GROUPS, N_GROUPS, *drawn.shape[1:]).swapaxes(0, 1)
        mean = groups.mean(axis=1)
        yield GroupMoments(
            count=np.full(mean.shape, float(n // N_GROUPS)),
            mean=mean,
            m2=((groups - mean[:, None]) ** 2).sum(axis=1),
            sizes=np.full(N_GROUPS, float(n // N_GROUPS)),
            are_queries=bool(n_queries),
        )


def report(name, population, n_samples, n_queries=0):
    """Print the coverage of total slopes, and of those within queries, by number of prompts."""
    population = population - population.mean(axis=0)
    line, part = line_weights(LENGTHS), "total"
    variance = (population**2).mean(axis=0)
    if n_queries:
        part = "within"
        by_query = population.reshape(-1, n_queries, *population.shape[1:])
        variance = variance - (by_query.mean(axis=0) ** 2).mean(axis=0)
    truth = np.log(variance.sum(axis=-1)) / 2 @ line
    rng = np.random.default_rng(1)
    for n in SIZES[1 if n_queries else 0 :]:
        plain, held, warned, drawn = [], [], 0, samples(population, n, rng, n_queries)
        for _ in range(n_samples):
            groups = next(drawn)
            columns, notes = fit_trends(LENGTHS, groups, np.ones(3))
            low, high = (columns[f"slope_{part}{end}"] for end in ("_low", "_high"))
            held.append((low <= truth) & (truth <= high))
            warned += n < 32 or bool(notes)
            full, rest = (
                over_features(getattr(x, part)) for x in (groups.split(), groups.split_without())
            )
            simple = jackknife(np.log(full) / 2 @ line, np.log(rest) / 2 @ line)
            half = 2.1314 * simple.se  # t with 15 degrees of freedom
            plain.append(np.abs(simple.value - truth) <= half)
        new, old = (np.mean(x, axis=0) for x in (held, plain))
        print(
            f"| {name} | {n} | {old.mean():.1%} ({old.min():.0%}) | {new.mean():.1%} | "
            f"{new.min():.0%} | {warned / n_samples:.0%} |",
            flush=True,
        )


def main(
    model: Annotated[str | None, typer.Option(help="Folder, .gguf file or hub id.")] = None,
    layers: Annotated[str, typer.Option(help="all, 0, or 0,4,8..12.")] = "0",
    queries: Annotated[bool, typer.Option("--queries", help="Several fixed queries.")] = False,
    n_samples: Annotated[int, typer.Option(help="Samples of each size.")] = 1000,
    n_population: Annotated[int, typer.Option(help="Prompts of a population.")] = 4096,
) -> None:
    print("| population | prompts | t, 15 df: mean (worst) | mean | worst | warned |")
    print("|---|---|---|---|---|---|")
    if model is None:
        rng = np.random.default_rng(0)
        for make in (gaussian, heavy, zipf):
            report(make.__name__, make(rng, n_population), n_samples)
        return
    loaded = load_model(model, dtype="float32")
    n_queries = 128 if queries else 0
    population = heads_of(loaded, layers, n_population, range(n_queries))
    name = f"{loaded.name}, {population.shape[1]} heads" + (", within queries" if queries else "")
    report(name, population, n_samples, n_queries)


if __name__ == "__main__":
    typer.run(main)
