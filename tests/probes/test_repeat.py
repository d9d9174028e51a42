"""Repeat prompts: the passage is there twice, with filler between."""

import pytest
import torch

from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.repeat import N_PASSAGE


def prompts(**options):
    given = {"n_prompts": 5, "lengths": (40, 100), "vocab_size": 97, "bos_token_id": 1}
    return make_prompts("repeat", **given | options)


@pytest.mark.parametrize("bos", [None, 1])
def test_the_end_is_the_beginning_but_for_its_last_token(bos):
    made = prompts(bos_token_id=bos)
    first = 0 if bos is None else 1
    for length in (40, 100):
        tokens = made.batch(range(5), length)
        passage = tokens[:, first : first + N_PASSAGE]
        assert tokens[:, -(N_PASSAGE - 1) :].equal(passage[:, :-1])
        assert made.answers(range(5), length).equal(passage[:, -1])
        assert made.targets(range(5), length).equal(passage[:, 1:])
        start, end = made.sources(range(5), length)[0].tolist()
        assert tokens[:, start:end].equal(passage[:, -1:])


def test_a_longer_prompt_has_the_same_passage_and_more_filler():
    short, long = (prompts().batch([2], n)[0] for n in (40, 100))
    assert short[: N_PASSAGE + 1].equal(long[: N_PASSAGE + 1])
    n_filler = 40 - 2 * N_PASSAGE
    assert short[N_PASSAGE + 1 :][:n_filler].equal(long[N_PASSAGE + 1 :][:n_filler])
    assert not torch.equal(prompts().batch([1], 40), prompts().batch([2], 40))


def test_what_has_no_room_for_both_passages_is_refused():
    assert prompts(lengths=(32,)).batch([0], 32).shape == (1, 32)
    with pytest.raises(ValueError, match="got 31, too short for a passage"):
        prompts(lengths=(31, 64))
    with pytest.raises(ValueError, match="repeat prompts end each in their own"):
        prompts(query="fixed")
