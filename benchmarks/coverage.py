"""How often 95 % intervals of slopes hold the truth, for populations whose truth is known.

    python benchmarks/coverage.py                               # made-up populations
    python benchmarks/coverage.py --model FOLDER_OR_GGUF --layers 0
    python benchmarks/coverage.py --model FOLDER_OR_GGUF --layers 0 --n-queries 16

A population is many prompts: outputs (prompts, heads, lengths, features). Its own slopes are the
truth. Samples of n prompts are drawn from it with replacement, each gets the interval that
`probe_variance` would give it, layer by layer, and the share of intervals that hold the truth is
counted by head. Notes are counted apart for layers whose heads all have 90 % or more, and for the
others. The heads of a model are a population as well: 4,096 of its random prompts, run once. With
--n-queries, prompts of 128 query tokens: samples have so many of these, with the same number of
prompts each. `docs/coverage.md` has the table.
"""

from typing import Annotated

import numpy as np
import torch
import typer
from scipy import special

from llmprobe import attention_layers, capture_attention, load_model, make_prompts
from llmprobe.base.components import GroupMoments, over_features
from llmprobe.base.jackknife import jackknife
from llmprobe.base.trends import heavy_tails, line_weights

LENGTHS = (16, 64, 256)
SIZES = (16, 32, 64, 256)
N_GROUPS = 16
N_TOKENS = 128
"""Query tokens of a population."""
GOOD = 0.9
FEW = 32
"""Prompts below which a note says so, whatever their tails."""
N_NUMBERS = 2**22
"""That are in memory at once, about."""


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


def heads_of(loaded, layers, n, n_tokens=0):
    """The heads of a model: (prompts, heads, lengths, features)."""
    prompts = make_prompts(
        "random",
        n_prompts=n,
        lengths=LENGTHS,
        seed=99,
        tokenizer=loaded.tokenizer,
        vocab_size=min(loaded.vocab_size, len(loaded.tokenizer)),
        bos_token_id=loaded.bos_token_id if loaded.adds_bos else None,
        **({"query": "fixed", "n_queries": n_tokens} if n_tokens else {}),
    )
    found = []
    for length in LENGTHS if n_tokens else LENGTHS[-1:]:
        places = [length - 1] if n_tokens else [k - 1 for k in LENGTHS]
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


def samples(population, n, rng, n_queries, n_samples) -> GroupMoments:
    """Moments of groups of n prompts: (groups, heads, samples, lengths, features)."""
    n_groups = n_queries or N_GROUPS
    if n_queries:  # prompt i of the population has query i mod N_TOKENS
        queries = rng.integers(N_TOKENS, size=(n_samples, 1, n_groups))
        rows = rng.integers(len(population) // N_TOKENS, size=(n_samples, n // n_groups, n_groups))
        drawn = population[rows * N_TOKENS + queries]
    else:
        drawn = population[rng.integers(len(population), size=(n_samples, n // n_groups, n_groups))]
    mean = drawn.mean(axis=1)
    m2 = ((drawn - mean[:, None]) ** 2).sum(axis=1)
    mean, m2 = (x.transpose(1, 2, 0, 3, 4) for x in (mean, m2))
    return GroupMoments(
        count=np.full(mean.shape, float(n // n_groups)),
        mean=mean,
        m2=m2,
        sizes=np.full(n_groups, float(n // n_groups)),
        are_queries=bool(n_queries),
    )


def intervals(groups, part, layers):
    """Ends of the slopes' intervals by head and sample, those of a plain t, and notes by layer.

    What `fit_trends` does to the heads of a layer, for all samples at once.
    """
    line = line_weights(LENGTHS)
    full, rest = (
        np.log(over_features(getattr(x, part))) / 2 @ line
        for x in (groups.split(), groups.split_without())
    )
    found = [jackknife(full[x], rest[:, x], groups.sizes, together=True) for x in layers]
    ends = [np.concatenate(x) for x in zip(*(one.ends() for one in found), strict=True)]
    simple = jackknife(full, rest, groups.sizes)
    half = special.stdtrit(len(groups.sizes) - 1, 0.975) * simple.se
    plain = [simple.value - half, simple.value + half]
    notes = [
        [bool(heavy_tails(x, groups.sizes, groups.are_queries)) for x in one.kurtosis.T]
        for one in found
    ]
    return ends, plain, np.array(notes)


def report(name, population, n_samples, n_queries=0, n_heads=None):
    """Print the coverage of total slopes, or of those within queries, by number of prompts.

    The mean is given with its Monte Carlo standard error. `n_heads` of a layer; all are of one
    layer by default.
    """
    population = population - population.mean(axis=0)
    part = "total"
    variance = (population**2).mean(axis=0)
    if n_queries:
        part = "within"
        each = population.reshape(-1, N_TOKENS, *population.shape[1:])
        variance = variance - (each.mean(axis=0) ** 2).mean(axis=0)
    truth = (np.log(variance.sum(axis=-1)) / 2 @ line_weights(LENGTHS))[:, None]
    rng, n_all = np.random.default_rng(1), population.shape[1]
    layers = [slice(at, at + (n_heads or n_all)) for at in range(0, n_all, n_heads or n_all)]
    by_query = [k * n_queries for k in (2, 4, 16) if k * n_queries <= SIZES[-1]]
    for n in by_query if n_queries else SIZES:
        n_batch = max(1, N_NUMBERS // (max(n, 16 * N_GROUPS) * population[0].size))
        held, plain, noted = [], [], []
        for at in range(0, n_samples, n_batch):
            drawn = samples(population, n, rng, n_queries, min(n_batch, n_samples - at))
            *both, notes = intervals(drawn, part, layers)
            for ends, kept in zip(both, (held, plain), strict=True):
                kept.append((ends[0] <= truth) & (truth <= ends[1]))
            noted.append(notes | (n < FEW))
        new, old, told = (np.concatenate(x, axis=1) for x in (held, plain, noted))
        error = new.mean(axis=0).std(ddof=1) / np.sqrt(n_samples)
        new, old, told = (x.mean(axis=1) for x in (new, old, told))
        good = np.array([new[x].min() >= GOOD for x in layers])
        shares = [f"{told[x].mean():.0%}" if x.any() else "–" for x in (good, ~good)]
        print(
            f"| {name} | {n} | {old.mean():.1%} ({old.min():.0%}) | "
            f"{100 * new.mean():.2f} ± {100 * error:.2f} % | {new.min():.0%} | "
            f"{np.mean(new < GOOD):.0%} | {' | '.join(shares)} |",
            flush=True,
        )


def main(
    model: Annotated[str | None, typer.Option(help="Folder, .gguf file or hub id.")] = None,
    layers: Annotated[str, typer.Option(help="all, 0, or 0,4,8..12.")] = "0",
    n_queries: Annotated[int, typer.Option(help="Fixed queries; 0 for free ones.")] = 0,
    n_samples: Annotated[int, typer.Option(help="Samples of each size.")] = 10000,
    n_population: Annotated[int, typer.Option(help="Prompts of a population.")] = 4096,
) -> None:
    print("| population | prompts | plain t: mean (worst) | mean | worst | below | good | bad |")
    print("|---|---|---|---|---|---|---|---|")
    if model is None:
        rng = np.random.default_rng(0)
        for make in (gaussian, heavy, zipf):
            report(make.__name__, make(rng, n_population), n_samples)
        return
    loaded = load_model(model, dtype="float32")
    population = heads_of(loaded, layers, n_population, n_tokens=N_TOKENS if n_queries else 0)
    name = f"{loaded.name}, {population.shape[1]} heads"
    if n_queries:
        name += f", {n_queries} queries"
    report(name, population, n_samples, n_queries, attention_layers(loaded)[0].n_heads)


if __name__ == "__main__":
    typer.run(main)
