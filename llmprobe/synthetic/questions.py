"""Questions about all of the input: parity, majority, and associative recall.

    task = RecallTask()
    task.show(task.sample(1, 2, generator)[0])   # "k7 v3 k9 v0 k9 v0 k7 v3"

The length counts bits, or pairs of a key and a value. An answer is one token, or as many as there
are bits or pairs, so it needs no end.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from llmprobe.synthetic.tasks import AnswerTask

EQUALS = 2
_FAR = (*AnswerTask.quarters, 32, 64)
_WITHOUT_ORDER = {"mlp": "mlp", "norm": "prenorm"}
"""The baseline where the order of the bits does not matter: it has no positions."""


class _Bits(AnswerTask):
    """N random bits, a sign, and one bit as the answer."""

    unit = "bits"
    longest = 1024
    words: ClassVar[tuple[str, ...]] = ("0", "1", "=")
    quarters = _FAR
    baseline: ClassVar[dict[str, str]] = _WITHOUT_ORDER

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        bits = torch.randint(2, (n, length), generator=generator)
        equals = torch.full_like(bits[:, :1], EQUALS)
        return torch.cat([bits, equals, self.label(bits)], dim=1)

    def label(self, bits: Tensor) -> Tensor:
        """The answers to bits (n, length)."""
        raise NotImplementedError

    def answer(self, length: int) -> slice:
        return slice(length + 1, length + 2)


class ParityTask(_Bits):
    """Is the number of ones odd?

    >>> task = ParityTask()
    >>> task.show(task.solve(task.read("1 0 1 1 =")))
    '1'
    """

    name = "parity"

    def label(self, bits: Tensor) -> Tensor:
        return bits.sum(dim=1, keepdim=True) % 2

    def solve(self, tokens: Sequence[int]) -> list[int]:
        odd = False
        for token in tokens[: list(tokens).index(EQUALS)]:
            odd ^= token == 1
        return [int(odd)]


class ParityStepsTask(_Bits):
    """The parity of the first bit, of the first two, ..., of all: each step needs one bit.

    >>> task = ParityStepsTask()
    >>> task.show(task.solve(task.read("1 0 1 1 =")))
    '1 1 0 1'
    """

    name = "parity-steps"
    longest = 256
    quarters = AnswerTask.quarters
    baseline: ClassVar[dict[str, str]] = AnswerTask.baseline

    def label(self, bits: Tensor) -> Tensor:
        return bits.cumsum(dim=1) % 2

    def answer(self, length: int) -> slice:
        return slice(length + 1, 2 * length + 1)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        length = list(tokens).index(EQUALS)
        return [sum(tokens[:end]) % 2 for end in range(1, length + 1)]

    def places(self, length: int) -> list[int]:
        up = list(range(2, length + 2))
        return [*up, 1, *up]


class MajorityTask(_Bits):
    """Are there more ones than zeros?

    >>> task = MajorityTask()
    >>> task.show(task.solve(task.read("1 0 1 1 =")))
    '1'
    """

    name = "majority"

    def label(self, bits: Tensor) -> Tensor:
        return (2 * bits.sum(dim=1, keepdim=True) > bits.shape[1]).long()

    def solve(self, tokens: Sequence[int]) -> list[int]:
        bits = tokens[: list(tokens).index(EQUALS)]
        return [int(bits.count(1) > bits.count(0))]


class SparseParityTask(AnswerTask):
    """Is the number of ones among 4 marked bits odd? The other bits do not matter.

    After arXiv 2502.16792. Where there are fewer than k bits, all of them are marked.

    >>> task = SparseParityTask()
    >>> task.show(task.solve(task.read("1! 0 0! 1 1 1! 1! =")))
    '1'
    """

    name = "sparse-parity"
    unit = "bits"
    longest = 1024
    words = ("0", "1", "=", "0!", "1!")
    MARKED = 3
    """What is added to a bit that is marked."""
    k: ClassVar[int] = 4
    """Bits that are marked."""
    quarters = _FAR
    baseline: ClassVar[dict[str, str]] = _WITHOUT_ORDER
    defaults: ClassVar[dict[str, Any]] = {**AnswerTask.defaults, "train_lengths": "4..20"}

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        bits = torch.randint(2, (n, length), generator=generator)
        chosen = torch.rand(n, length, generator=generator).topk(min(self.k, length), dim=1).indices
        parity = bits.gather(1, chosen).sum(dim=1, keepdim=True) % 2
        tokens = bits.scatter_add(1, chosen, torch.full_like(chosen, self.MARKED))
        return torch.cat([tokens, torch.full_like(parity, EQUALS), parity], dim=1)

    def answer(self, length: int) -> slice:
        return slice(length + 1, length + 2)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        bits = tokens[: list(tokens).index(EQUALS)]
        return [sum(self.words[token] == "1!" for token in bits) % 2]


class SparseParity6Task(SparseParityTask):
    """Is the number of ones among 6 marked bits odd?"""

    name = "sparse-parity-6"
    k = 6


class SparseParity8Task(SparseParityTask):
    """Is the number of ones among 8 marked bits odd?"""

    name = "sparse-parity-8"
    k = 8


class SparseParity10Task(SparseParityTask):
    """Is the number of ones among 10 marked bits odd?"""

    name = "sparse-parity-10"
    k = 10


class SparseParity12Task(SparseParityTask):
    """Is the number of ones among 12 marked bits odd?"""

    name = "sparse-parity-12"
    k = 12


class RecallTask(AnswerTask):
    """The values that belong to keys: N pairs, then each key again, in another order.

    This is the multi-query associative recall of arXiv 2312.04927. Keys are different tokens.

    >>> task = RecallTask()
    >>> task.show(task.solve(task.read("k7 v3 k9 v0 k9 v0 k7 v3")))
    'v0 v3'
    """

    name = "recall"
    unit = "pairs"
    longest = 64
    N_VALUES = 16
    words = (*(f"v{number}" for number in range(16)), *(f"k{number}" for number in range(longest)))
    # A head that looks at the token before is learned far sooner with rotary positions.
    baseline: ClassVar[dict[str, str]] = AnswerTask.baseline | {"positions": "rotary"}
    defaults: ClassVar[dict[str, Any]] = {
        **AnswerTask.defaults,
        "variants": "baseline,learned",
        "train_lengths": "2..8",
        "learning_rate": 1e-3,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = AnswerTask.presets | {
        "quick": {"seeds": 2, "steps": 1500, "sets": 256, "variants": "baseline"}
    }

    def sample(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        order = torch.rand(n, self.longest, generator=generator)
        keys = self.N_VALUES + order.topk(length, dim=1).indices
        values = torch.randint(self.N_VALUES, (n, length), generator=generator)
        asked = torch.rand(n, length, generator=generator).argsort(dim=1)
        pairs = torch.stack([keys, values], dim=2)
        again = pairs.gather(1, asked[..., None].expand_as(pairs))
        return torch.cat([pairs, again], dim=1).flatten(1)

    def answer(self, length: int) -> slice:
        return slice(2 * length + 1, 4 * length, 2)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        half = len(tokens) // 2
        known = dict(zip(tokens[:half:2], tokens[1:half:2], strict=True))
        return [known[key] for key in tokens[half::2]]
