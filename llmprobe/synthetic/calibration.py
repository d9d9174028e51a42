"""Attention bias calibration (arXiv 2310.11984): train on short sequences, see along which lines
attention looks, and train again with a bias that keeps it on these lines at any length.

Lines are diagonals (i − j = d), verticals (j = c) and anti-diagonals (i + j = c) of the last
layer's mean attention, of each head alone. Of each direction, those whose mean weight is more than
`STRENGTH` standard deviations above the mean line's are kept. A line runs on beyond the lengths of
training. A logit gets the largest mean weight of the lines it lies on, and `OUTSIDE` if none of
them is kept. All layers get the bias of the last.
"""

import torch
from torch import Tensor, nn

STRENGTH = 0.87
OUTSIDE = -1e6


class Calibrated(nn.Module):
    """The bias of a decoder's attention, 0 until it is calibrated; it is not trained.

    One number for each line: (seeds, heads, 4 context - 1).
    """

    def __init__(self, seeds: int, heads: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.lines = nn.Parameter(torch.zeros(seeds, heads, 4 * context - 1), requires_grad=False)

    def forward(self, n: int) -> Tensor:
        """What is added to the logits of n tokens: (seeds, heads, n, n)."""
        if n > self.context:
            raise ValueError(
                f"input_ids: got {n} tokens, accepted: up to the context, {self.context}"
            )
        found = self.lines[:, :, _lines(n, self.context, self.lines.device)]
        return found.amax(dim=2)

    def calibrate(self, weights: Tensor) -> None:
        """From mean attention weights (seeds, heads, n, n), whose rows are queries."""
        n = weights.shape[-1]
        seen = torch.ones(n, n, dtype=torch.bool, device=weights.device).tril()
        table = torch.full_like(self.lines, OUTSIDE)
        for lines in _lines(n, self.context, weights.device):
            on = lines[seen]
            known, at, counts = on.unique(return_inverse=True, return_counts=True)
            sums = weights.new_zeros(*weights.shape[:2], len(known))
            means = sums.index_add_(-1, at, weights[:, :, seen]) / counts
            deviation, mean = torch.std_mean(means, dim=-1, correction=0, keepdim=True)
            kept = means > mean + STRENGTH * deviation
            table[:, :, known] = torch.where(kept, means, OUTSIDE).to(table)
        self.lines.data.copy_(table)


def _lines(n: int, context: int, device: torch.device) -> Tensor:
    """The numbers of the lines that each pair lies on: (3, n, n), the query first."""
    place = torch.arange(n, device=device)
    i, j = place[:, None], place[None]
    # A pair of the future lies on no diagonal here; it is masked in any case.
    return torch.stack([(i - j).clamp(min=0), context + j.expand(n, n), 2 * context + i + j])
