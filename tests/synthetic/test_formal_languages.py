"""What a language allows, against its definition by brute force; and that sequences are long."""

import doctest
import itertools
import re

import pytest
import torch

from llmprobe.synthetic import formal_languages
from llmprobe.synthetic.formal_languages import TOMITA, DyckTask
from llmprobe.synthetic.tasks import TASKS, SequenceTask

MEMBER = {
    1: lambda word: "0" not in word,
    2: lambda word: re.fullmatch("(10)*", word),
    3: lambda word: (
        not any(len(ones) % 2 and len(zeros) % 2 for ones, zeros in re.findall("(1+)(0+)", word))
    ),
    4: lambda word: "000" not in word,
    5: lambda word: word.count("0") % 2 == 0 == word.count("1") % 2,
    6: lambda word: (word.count("0") - word.count("1")) % 3 == 0,
    7: lambda word: re.fullmatch("0*1*0*1*", word),
}
"""Tomita's languages by their definitions."""


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def options(task, words):
    """What may come after each of some words, as text."""
    tokens = torch.tensor([[*(task.words.index(word) for word in words), 0]])
    return [
        {word for word, may in zip(task.words, allowed, strict=True) if may}
        for allowed in task.allowed(tokens)[0].tolist()
    ]


def test_the_examples_in_the_manual_hold():
    results = doctest.testmod(formal_languages)
    assert results.failed == 0
    assert results.attempted >= 6


def viable(number, word):
    """Whether some word of the language begins so."""
    ends = ("".join(end) for n in range(4) for end in itertools.product("01", repeat=n))
    return any(MEMBER[number](word + end) for end in ends)


@pytest.mark.parametrize("number", MEMBER)
def test_tomita_allows_what_words_of_the_language_begin_with(number):
    task = SequenceTask.named(f"tomita-{number}")
    words = ("".join(word) for n in range(1, 7) for word in itertools.product("01", repeat=n))
    for word in words:
        if not viable(number, word):
            continue
        expected = {end for end in "01" if viable(number, word + end)}
        expected |= {"."} if MEMBER[number](word) else set()
        assert options(task, word)[-1] == expected, word
        if "." in expected:  # it changes nothing
            assert options(task, word + ".")[-1] == expected


def test_there_are_seven_languages_of_tomita():
    assert len(TOMITA) == 7
    assert [name for name in TASKS if "tomita" in name] == [f"tomita-{n}" for n in MEMBER]


def brackets(task, words):
    """What may come, by a stack."""
    opening, closing = task.words[: task.k], task.words[task.k :]
    stack = []
    for word in words:
        if word in opening:
            stack.append(word)
            assert len(stack) <= task.depth
        else:
            assert word == closing[opening.index(stack.pop())]
        may = set(opening) if len(stack) < task.depth else set()
        yield may | ({closing[opening.index(stack[-1])]} if stack else set())


@pytest.mark.parametrize("vocab", [2, 4, 10])
def test_dyck_equals_a_stack(vocab):
    task = DyckTask(vocab)
    for row in task.sample(10, 60, generator()):
        words = task.show(row).split()
        assert options(task, words) == list(brackets(task, words))
    assert len(set(task.words)) == vocab


def counted(text):
    """What may come in words aⁿbⁿ or aⁿbⁿcⁿ, by counting."""
    letters = "abc" if "c" in text else "ab"
    for end in range(1, len(text) + 1):
        last = re.search(f"(a+){''.join(f'({x}*)' for x in letters[1:])}$", text[:end])
        n, *others = (len(group) for group in last.groups())
        if not any(others):
            yield {"a", "b"}
        else:
            at = next((i for i, count in enumerate(others) if count < n), None)
            yield {"a"} if at is None else {letters[at + 1]}


@pytest.mark.parametrize("name", ["counter", "counter-3"])
def test_counters_equal_counting(name):
    task = SequenceTask.named(name, 6)
    for row in task.sample(6, 80, generator()):
        text = re.sub(r"a\d| ", lambda m: m[0][:1].strip(), task.show(row))
        found = [{word[0] for word in may} for may in options(task, task.show(row).split())]
        assert found == list(counted(text))


def test_more_letters_make_longer_words():
    def longest(vocab):
        tokens = SequenceTask.named("counter", vocab).sample(100, 200, generator())
        return max(
            len(run)
            for row in tokens
            for run in re.findall(
                "1+", "".join(str(int(token < vocab - 1)) for token in row.tolist())
            )
        )

    assert longest(2) < 20 < longest(16)


@pytest.mark.parametrize("name", [name for name in TASKS if "tomita" in name or name == "dyck"])
def test_sequences_never_end(name):
    task = SequenceTask.named(name)
    tokens = task.sample(50, task.longest, generator())
    assert task.allowed(tokens).any(dim=-1).all()


@pytest.mark.parametrize(
    ("name", "vocab", "words"),
    [("dyck", 3, "even, 2 to 64"), ("dyck", 66, "even, 2 to 64"), ("counter", 1, "2 to 256")],
)
def test_a_vocabulary_that_makes_no_language_is_refused(name, vocab, words):
    with pytest.raises(ValueError, match=rf"^vocab: got {vocab}, accepted: {words} tokens$"):
        SequenceTask.named(name, vocab)
