"""Repeat prompts: a passage, filler, and the passage again, but for its last token.

A model that copies predicts the second passage from the first, whatever stands between them. That
needs no instruction, so models that were never tuned to answer can be asked as well.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from llmprobe.base.seeds import numpy_generator
from llmprobe.probes.prompts import Material, RandomPrompts, Tokens

N_PASSAGE = 16
"""Tokens of the passage."""


class RepeatPrompts(RandomPrompts, kind="repeat"):
    """A passage of 16 random tokens, random filler, and the passage again.

    Prompt i has the same passage at every length; a longer prompt has more filler. It ends before
    the passage's last token, which is the answer.
    """

    takes_query = False

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.prefix_consistent = False
        self._n_ordinary = material.vocab_size - len(material.left_out)
        least = 2 * N_PASSAGE - 1 + self.n_head
        if material.shortest < least:
            raise ValueError(
                f"lengths: got {material.shortest}, too short for a passage and its repetition in "
                f"repeat prompts, accepted: {least} or more"
            )

    def answers(self, indices: Sequence[int], length: int) -> Tensor:
        """The last token of the passage, (len(indices),), int64 on the CPU."""
        return self.targets(indices, length)[:, -1]

    def targets(self, indices: Sequence[int], length: int) -> Tensor:
        """The second passage without its first token, which nothing announces."""
        self._own_tokens(indices, length)
        return torch.from_numpy(np.stack([self._passage(i)[1:] for i in indices]))

    def sources(self, indices: Sequence[int], length: int) -> Tensor:
        end = self.n_head + N_PASSAGE
        return torch.tensor([[end - 1, end]] * len(indices))

    def facts(self, indices: Sequence[int], length: int) -> dict[str, list[float]]:
        return {"chance": [1 / self._n_ordinary] * len(indices)}

    def _passage(self, index: int) -> Tokens:
        return self._draw(N_PASSAGE, numpy_generator(self._seed, "passage", index))

    def _body(self, index: int, n_tokens: int) -> Tokens:
        passage = self._passage(index)
        n_filler = n_tokens - 2 * N_PASSAGE + 1
        filler = self._draw(n_filler, numpy_generator(self._seed, "prompt", index))
        return np.concatenate([passage, filler, passage[:-1]])
