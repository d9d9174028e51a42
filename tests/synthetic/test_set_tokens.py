"""A token of a set is a number and a class, and both can be read back."""

import torch

from llmprobe.synthetic.set_tokens import (
    N_BITS,
    N_CLASSES,
    VOCAB_SIZE,
    numbers_of,
    repeats,
    signs_of,
    with_class,
)

TOKENS = torch.tensor([[0, 9, 10, VOCAB_SIZE - 1], [6 * N_CLASSES + 3, 57, 101, 12345678]])


def test_a_token_is_its_number_and_its_class():
    numbers = numbers_of(TOKENS)
    assert torch.equal(numbers * N_CLASSES + TOKENS % N_CLASSES, TOKENS)
    assert numbers.max() == 2**N_BITS - 1
    described = with_class(numbers[..., None].double(), TOKENS)
    assert described.shape == (2, 4, 1 + N_CLASSES)
    assert torch.equal(described[..., 0].long(), numbers)
    assert torch.equal(described[..., 1:].argmax(dim=-1), TOKENS % N_CLASSES)
    assert (described[..., 1:].sum(dim=-1) == 1).all()


def test_signs_are_the_bits_of_the_number_in_a_vector_of_length_one():
    signs = signs_of(TOKENS)
    assert signs.shape == (2, 4, N_BITS)
    torch.testing.assert_close(signs.norm(dim=-1), torch.ones(2, 4))
    powers = 2 ** torch.arange(N_BITS)
    assert torch.equal(((signs > 0) * powers).sum(dim=-1), numbers_of(TOKENS))


def test_repeats_are_all_but_the_first():
    keys = torch.tensor([[3, 5, 3, 3, 5, 1], [1, 2, 3, 4, 5, 6]])
    expected = torch.tensor([[0, 0, 1, 1, 1, 0], [0] * 6]).bool()
    assert torch.equal(repeats(keys), expected)
