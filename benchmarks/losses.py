"""Case j: memory of the loss of every token, over that of the layers alone.

A narrow model with the vocabulary of Llama 3: all logits at once would be most of what it needs.
"""

from collections.abc import Iterator

from report import Finding, Options, compare
from worker import Worker

MEMORY = 1.3
LENGTH = 16_384
ROUNDS = 3


def run(options: Options) -> Iterator[Finding]:
    length = LENGTH
    ours, theirs = ([_peak(way, length) for _ in range(ROUNDS)] for way in ("losses", "layers"))
    yield compare(
        "j",
        f"losses of {length:,} tokens: memory over the layers alone",
        ours,
        theirs,
        unit="bytes",
        target=MEMORY,
        at_least=False,
        note="a vocabulary of 128,256 tokens, width 256, 2 layers",
    )


def _peak(way: str, length: int) -> float:
    """Bytes in a process of its own: what an earlier forward left in the heap would hide some."""
    with Worker("narrow") as worker:
        worker.need(way, [256], range(2))  # libraries allocate once
        peak = worker.need(way, [length], range(2), memory=True).peak
    assert peak is not None
    return float(peak)
