"""A prompt is what its seed, its number and its length say, whoever asks for it and how."""

import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from prompt_sets import LENGTHS, SPECIAL, TEXT, TOKENIZER, TOKENIZERS, TOKENS, make, wrap
from scipy.stats import chisquare
from tokenizers import Tokenizer, models

from llmprobe.base.seeds import numpy_generator
from llmprobe.probes import prompts as module
from llmprobe.probes.prompts import Prompts, _draw, never_produced

FREE = [kind for kind, made in Prompts.kinds.items() if made.takes_query]


def variants():
    for kind in Prompts.kinds:
        for bos in (None, 0):
            yield pytest.param(kind, {"bos_token_id": bos}, id=f"{kind}-{bos}")
            if kind in FREE:
                options = {"bos_token_id": bos, "query": "fixed"}
                yield pytest.param(kind, options, id=f"{kind}-{bos}-fixed")


every_variant = pytest.mark.parametrize(("kind", "options"), [*variants()])


@every_variant
def test_shapes_are_exact_and_bos_is_first_and_only_there(kind, options):
    prompts = make(kind, **options)
    assert (prompts.kind, prompts.n_prompts, prompts.longest) == (kind, 6, 150)
    for length in LENGTHS:
        batch = prompts.batch(range(6), length)
        assert batch.shape == (6, length)
        assert batch.dtype == torch.int64
        assert batch.device.type == "cpu"
        is_bos = batch == 0
        assert is_bos[:, 0].all() == (options["bos_token_id"] == 0)
        assert not is_bos[:, 1:].any()
    assert prompts.batch([], 40).shape == (0, 40)


@every_variant
def test_no_batching_no_other_length_and_no_other_prompt_changes_a_prompt(kind, options):
    prompts = make(kind, **options)
    for length in LENGTHS:
        whole = prompts.batch(range(6), length)
        single = torch.cat([prompts.batch([i], length) for i in (5, 3, 0)])
        assert torch.equal(single, whole[[5, 3, 0]])
        for others in ((length,), (length, 170), (200, 40, length)):
            for n_prompts in (6, 9):
                other = make(kind, **options, lengths=others, n_prompts=n_prompts)
                assert torch.equal(other.batch(range(6), length), whole)
                assert other.query_tokens == prompts.query_tokens
    assert len({tuple(row) for row in whole.tolist()}) == 6


@every_variant
def test_prefixes_are_consistent_exactly_where_that_is_said(kind, options):
    prompts = make(kind, **options)
    longest = prompts.batch(range(6), 150)
    same = [torch.equal(prompts.batch(range(6), n), longest[:, :n]) for n in (40, 41, 64, 149)]
    assert prompts.prefix_consistent == (kind in FREE and "query" not in options)
    assert all(same) if prompts.prefix_consistent else not any(same)


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize("bos", [None, 0])
def test_a_fixed_query_is_last_and_all_else_is_the_free_prompt(kind, bos):
    free = make(kind, bos_token_id=bos, lengths=(2, 40, 150))
    fixed = make(kind, bos_token_id=bos, lengths=(2, 40, 150), query="fixed")
    assert free.query_tokens == ()
    assert len(fixed.query_tokens) == 16
    assert not SPECIAL & set(fixed.query_tokens)
    for length in (2, 40, 150):
        batch = fixed.batch(range(6), length)
        assert torch.equal(batch[:, :-1], free.batch(range(6), length)[:, :-1])
        assert batch[:, -1].tolist() == list(fixed.query_tokens[:6])
    few = make(kind, bos_token_id=bos, query="fixed", n_queries=4)
    assert few.query_tokens == fixed.query_tokens[:4]
    assert few.batch(range(6), 40)[:, -1].tolist() == [few.query_tokens[i % 4] for i in range(6)]
    assert len({make(kind, query="fixed", seed=seed).query_tokens for seed in range(20)}) == 20


@every_variant
def test_a_digest_stands_for_the_tokens(kind, options):
    digest = make(kind, **options).digest()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert make(kind, **options, lengths=(64, 150)).digest() == digest
    for change in ({"n_prompts": 7}, {"lengths": (40, 151)}):
        assert make(kind, **{**options, **change}).digest() != digest
    of_seed = make(kind, **{**options, "seed": 1}).digest()
    assert (of_seed != digest) == (Prompts.kinds[kind].is_drawn or "query" in options)


def test_kinds_have_digests_of_their_own():
    assert len({make(kind).digest() for kind in Prompts.kinds}) == len(Prompts.kinds)


def test_a_prompt_that_is_not_there_is_refused():
    prompts = make("random", query="fixed", bos_token_id=0)
    for index in (-1, 6):
        with pytest.raises(ValueError, match=f"indices: got {index}, accepted: 0 to 5"):
            prompts.batch([0, index], 40)
    for length in (0, 1, 151):
        with pytest.raises(ValueError, match=f"length: got {length}, accepted: up to 150"):
            prompts.batch([0], length)


@pytest.mark.parametrize("n", [3, 497, 50_000, 2**31 + 5, 2**33])
def test_few_numbers_are_the_beginning_of_many(n):
    """What the prefix law rests on, in numpy."""
    bounds = np.array([n // 3, n])

    def draw(size):
        generator = np.random.default_rng(0)
        return [*_draw(bounds, size, generator)]

    many = draw(10_000)
    assert set(many) == {0, 1}
    for size in (0, 1, 2, 99, 100, 1001):
        assert draw(size) == many[:size]


def test_random_prompts_are_uniform_over_the_ordinary_tokens():
    batch = make("random", n_prompts=40, lengths=[1001], bos_token_id=0).batch(range(40), 1001)
    counts = np.bincount(batch[:, 1:].flatten(), minlength=len(TOKENIZER))
    assert not counts[list(SPECIAL)].any()
    assert chisquare(counts[3:]).pvalue > 0.01
    firsts = make("random", n_prompts=4000, lengths=[2]).batch(range(4000), 1)
    assert chisquare(np.bincount(firsts.flatten(), minlength=len(TOKENIZER))[3:]).pvalue > 0.01


@pytest.mark.parametrize("query", ["free", "fixed"])
@pytest.mark.parametrize("vocab_size", [5, 40, 300, len(TOKENIZER)])
@pytest.mark.parametrize(
    ("special", "bos"), [([], None), ([], 4), ([0], 0), ([0, 1, 3], 2), ([4, 17, 39, 299, 900], 3)]
)
def test_random_prompts_are_those_of_running_sums_over_all_tokens(special, bos, vocab_size, query):
    tokenizer = SimpleNamespace(all_special_ids=special)
    options = {"tokenizer": tokenizer, "vocab_size": vocab_size, "bos_token_id": bos}
    prompts = make("random", seed=7, query=query, **options)
    counts = np.ones(vocab_size, np.int64)
    counts[[i for i in special if i < vocab_size]] = 0
    if bos is not None:
        counts[bos] = 0
    drawn = _draw(counts.cumsum(), 16, numpy_generator(7, "query"))
    begin = [] if bos is None else [bos]
    for index in range(6):
        end = [] if query == "free" else [drawn[index]]
        n_own = 150 - len(begin) - len(end)
        own = _draw(counts.cumsum(), n_own, numpy_generator(7, "prompt", index))
        assert prompts.batch([index], 150)[0].tolist() == [*begin, *own, *end]


def test_random_prompts_make_no_array_of_all_tokens():
    options = {"tokenizer": None, "text": None, "bos_token_id": 3, "vocab_size": 2**24 * 10}
    tracemalloc.start()
    try:
        prompts = make("random", query="fixed", **options)
        assert prompts.batch(range(6), 150).max() > 2**24 * 9
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_random_prompts_have_no_token_that_a_text_cannot_have():
    letters = [*"abcd", "<0x0A>", "ab", "[PAD7]", "abc", "<s>", "<unk>", "é"]
    vocab = {spelling: at for at, spelling in enumerate(letters)} | {"d ": 12}  # and 11 is missing
    backend = Tokenizer(models.BPE(vocab, [("a", "b"), ("ab", "c")]))
    tokenizer = wrap(backend)
    assert never_produced(tokenizer, 13).tolist() == [6, 8, 9, 11, 12]
    assert never_produced(tokenizer, 9).tolist() == [6, 8]
    prompts = make("random", tokenizer=tokenizer, vocab_size=13, lengths=[400])
    assert set(prompts.batch(range(6), 400).flatten().tolist()) == {0, 1, 2, 3, 4, 5, 7, 10}
    assert never_produced(None, 13).size == never_produced(SimpleNamespace(), 13).size == 0


def test_every_token_of_a_trained_vocabulary_can_be_drawn():
    for tokenizer in TOKENIZERS.values():
        assert set(never_produced(tokenizer, len(tokenizer)).tolist()) == SPECIAL


def test_random_prompts_need_no_tokenizer():
    prompts = make("random", tokenizer=None, vocab_size=5, bos_token_id=3, text=None)
    assert set(prompts.batch(range(6), 150)[:, 1:].flatten().tolist()) == {0, 1, 2, 4}
    everything = make("random", tokenizer=None, vocab_size=5).batch(range(6), 150)
    assert set(everything.flatten().tolist()) == {0, 1, 2, 3, 4}


def test_special_tokens_may_be_beyond_the_model():
    prompts = make("random", vocab_size=2, bos_token_id=None, tokenizer=None)
    assert prompts.batch([0], 64).max() == 1
    assert make("random", vocab_size=4).batch([0], 64).unique().tolist() == [3]


def test_unigram_prompts_have_the_frequencies_of_the_text():
    text = TEXT + " <s><reserved> of <s>"
    batch = make("unigram", text=text, n_prompts=40, lengths=[1000]).batch(range(40), 1000)
    counts = np.bincount(batch.flatten(), minlength=len(TOKENIZER))
    ids = TOKENIZER(text, add_special_tokens=False, verbose=False).input_ids
    assert SPECIAL & set(ids)
    expected = np.bincount([i for i in ids if i not in SPECIAL], minlength=len(TOKENIZER))
    assert not counts[expected == 0].any()
    wanted = expected * counts.sum() / expected.sum()
    often = wanted > 5  # the rest is one class
    seen, wanted = ([*x[often], x[~often].sum() + 1] for x in (counts, wanted))
    assert chisquare(seen, wanted).pvalue > 0.01


def places(prompts, length, ring=TOKENS):
    """Where each prompt stands in the ring; the text has every window at one place only."""
    ring = np.array(ring)
    around = np.concatenate([ring, ring[: length - 1]])
    windows = np.lib.stride_tricks.sliding_window_view(around, length)
    found = []
    for row in prompts.batch(range(prompts.n_prompts), length).numpy():
        [at] = np.flatnonzero((windows == row).all(1))
        found.append(int(at))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_text_prompts_are_disjoint_windows_where_the_text_is_long_enough(seed):
    prompts = make("text", n_prompts=8, lengths=(30, 80), seed=seed)
    assert len(TOKENS) > 8 * 80 * 2.7
    at = places(prompts, 80)
    gaps = np.diff(sorted(at), append=min(at) + len(TOKENS))
    assert gaps.min() >= 80
    assert prompts.warnings == ()
    assert places(prompts, 30) == at


def test_windows_that_overlap_are_counted_and_the_needed_text_is_enough():
    prompts = make("text", n_prompts=30, lengths=(30, 200))
    [warning] = prompts.warnings
    assert warning.isprintable()
    at = np.array(places(prompts, 200))
    apart = np.abs(at[:, None] - at)
    apart = np.minimum(apart, len(TOKENS) - apart) + len(TOKENS) * np.eye(30)
    n_overlapping = int((apart.min(1) < 200).sum())
    pattern = rf"{n_overlapping} of the 30 windows of 200 .* has {len(TOKENS)} tokens.* need (\d+);"
    needed = int(re.search(pattern, warning)[1])
    text = TOKENIZER.decode(TOKENS * (needed // len(TOKENS) + 1))
    for seed in range(5):
        assert make("text", n_prompts=30, lengths=[200], text=text, seed=seed).warnings == ()
    assert make("text", n_prompts=1, lengths=[len(TOKENS)]).warnings == ()


def test_windows_are_spread_evenly_for_any_number_of_prompts():
    for n_prompts in (5, 13, 40):
        at = np.sort(places(make("text", n_prompts=n_prompts, lengths=[60]), 60))
        gaps = np.diff(at, append=at[0] + len(TOKENS))
        assert gaps.max() < 2.7 * len(TOKENS) / n_prompts


def test_a_text_is_tokenized_whole_in_pieces(monkeypatch):
    ids = make("text", n_prompts=1, lengths=[len(TOKENS)])._text
    assert ids.tolist() == TOKENS
    monkeypatch.setattr(module, "_CHUNK", 200)
    pieces = make("text", n_prompts=1, lengths=[2000])._text
    assert TOKENIZER.decode(pieces) == TEXT
    assert pieces.tolist() == TOKENS  # no token spans a line break here
    for text in (TEXT.replace("\n", " "), "a" * 1001, "\n" * 1001, " " * 1001):
        ids = make("text", n_prompts=1, lengths=[2], text=text)._text
        assert TOKENIZER.decode(ids) == text


def test_a_long_text_is_no_reason_to_warn(caplog):
    make("text")
    assert len(TOKENS) > TOKENIZER.model_max_length
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("poem", {}, "prompts: got 'poem', accepted: random, unigram, text, dictionary"),
        ("random", {"query": ""}, "query: got '', accepted: free, fixed, the text of one token"),
        ("random", {"query": "Fixed "}, "query: got 'Fixed '; use 'fixed'"),
        ("random", {"query": "whales"}, r"query: 'whales' is \d tokens of this model, accepted"),
        ("random", {"query": "id:310"}, "query: got 'id:310', accepted: id:0 to id:309"),
        ("random", {"query": "id:x"}, "query: got 'id:x', accepted: id:0 to id:309"),
        ("random", {"query": "the", "tokenizer": None}, "no tokenizer; use id:NUMBER"),
        ("random", {"n_queries": 4}, r"n_queries: got 4 with query='free'; use query=\"fixed\""),
        ("random", {"query": "fixed", "n_queries": 0}, "n_queries: got 0, accepted: 1 to 4096"),
        ("dictionary", {"query": "fixed"}, "dictionary prompts end each in their own; use free"),
        ("random", {"n_prompts": 0}, "n_prompts: got 0, accepted: 1 or more"),
        ("random", {"lengths": ()}, r"lengths: got \[\], accepted: 1 or more$"),
        ("random", {"lengths": (0, 4)}, r"lengths: got \[0, 4\], accepted: 1 or more$"),
        ("random", {"lengths": (1,), "bos_token_id": 0}, "2 or more with a BOS token or a fixed"),
        ("text", {"lengths": (1,), "query": "fixed"}, "2 or more with a BOS token or a fixed"),
        ("random", {"bos_token_id": 999}, "bos_token_id: got 999, accepted: 0 to 309"),
        ("random", {"seed": -1}, "seed: got -1"),
        ("unigram", {"text": None}, "unigram prompts need a text; give text=FILE"),
        ("text", {"text": ""}, "text prompts need a text; give text=FILE"),
        ("unigram", {"tokenizer": None}, "unigram needs a tokenizer"),
        ("text", {"tokenizer": None}, "text needs a tokenizer"),
        ("dictionary", {"tokenizer": None}, "dictionary needs a tokenizer"),
        ("unigram", {"text": "<s><s>"}, "unigram finds no ordinary token"),
        ("unigram", {"vocab_size": 50}, "tokenizer: gives token .*, but the model has 50"),
        ("text", {"text": "the sea"}, r"text: has \d tokens, but the longest length is 150; use a"),
    ],
)
def test_a_wrong_argument_is_one_line(kind, options, line):
    with pytest.raises(ValueError, match=line) as caught:
        make(kind, **options)
    assert str(caught.value).isprintable()
