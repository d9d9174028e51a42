"""Dictionary prompts: the list holds the answer, in the tokens of the query."""

import re
from collections import Counter

import pytest
import torch
from prompt_sets import TOKENIZER, TOKENIZERS, make, wrap
from tokenizers import Tokenizer, models, pre_tokenizers

from llmprobe.probes import dictionary as module


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("bos", [None, 0])
def test_dictionary_prompts_are_lists_that_hold_the_answer(name, bos):
    tokenizer = TOKENIZERS[name]
    options = {"tokenizer": tokenizer, "vocab_size": len(tokenizer), "lengths": (60, 150, 700)}
    prompts = make("dictionary", **options, n_prompts=20, bos_token_id=bos)
    asked_at, first_tokens = [], set()
    for length in (60, 150, 700):
        batch, answers = prompts.batch(range(20), length), prompts.answers(range(20), length)
        assert answers.shape == (20,)
        assert answers.dtype == torch.int64
        for row, answer in zip(batch.tolist(), answers.tolist(), strict=True):
            cut, *lines, query = tokenizer.decode(row[bos is not None :]).split("\n")
            assert all(re.fullmatch(r"[a-z]{4,12}->[a-z]{4,12}", line) for line in lines)
            if cut.startswith(query):  # then it is whole
                lines = [cut, *lines]
            pairs = [line.split("->") for line in lines]
            assert len({key for key, _ in pairs}) == len(pairs)
            [value] = [value for key, value in pairs if f"{key}->" == query]
            token = tokenizer.decode([answer])
            assert token.strip()
            assert value.startswith(token)
            # The list has the answer behind the query's very tokens.
            n_query = next(n for n in range(1, 30) if tokenizer.decode(row[-n:]).strip() == query)
            followers = [
                row[at + n_query]
                for at in range(len(row) - n_query)
                if row[at : at + n_query] == row[-n_query:]
            ]
            assert answer in followers
            asked_at.append([key for key, _ in pairs].index(query[:-2]) / len(pairs))
            first_tokens.add(answer)
    assert min(asked_at) < 0.2
    assert max(asked_at) > 0.75
    assert len(first_tokens) > 8


def test_longer_dictionaries_have_more_in_front():
    prompts = make("dictionary", lengths=(60, 700))
    short, long = (TOKENIZER.decode(prompts.batch([2], n)[0]).split("\n") for n in (60, 700))
    assert short[1:-1] == long[-len(short) + 1 : -1]


def test_the_least_length_of_a_dictionary_is_named_and_true():
    with pytest.raises(ValueError, match="too short for one pair") as caught:
        make("dictionary", lengths=(5, 100), bos_token_id=0)
    least = int(re.search(r"accepted: (\d+) or more$", str(caught.value))[1])
    prompts = make("dictionary", lengths=(least, 100), bos_token_id=0)
    assert prompts.answers(range(6), least).shape == (6,)
    with pytest.raises(ValueError, match=f"accepted: {least} or more$"):
        make("dictionary", lengths=(least - 1,), bos_token_id=0)
    with pytest.raises(ValueError, match="too few"):
        prompts.batch([0], 5)


def test_a_tokenizer_that_cannot_spell_made_up_words_is_refused():
    backend = Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 1, "a": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="tokenizer: has no tokens for"):
        make("dictionary", tokenizer=wrap(backend))


def test_made_up_words_are_many():
    assert Counter(map(len, module._SYLLABLES)).keys() <= {2, 3, 4}
    assert len(set(module._SYLLABLES)) ** 2 > 100_000
