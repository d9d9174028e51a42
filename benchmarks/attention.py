"""Case c: where chosen tokens look, without the whole attention matrices.

Entropy and the 16 largest weights of the rows of up to 11 tokens in all layers of a toy:
`capture_rows` against transformers' `output_attentions`, each in a process of its own. Equal
entropies first; then time, and the peak of memory beyond what the process had with its model.
"""

from collections.abc import Iterator
from statistics import median

from measure import exponent
from report import Finding, Options, alone, compare
from shapes import SHAPES
from sweeps import TOLERANCE, relative_difference
from worker import Worker

from llmprobe import parse_lengths

LONGEST = 8192
"""Whole matrices need about 11 GB here; targets are for this length."""
FIRST_LINEAR = 4096
"""Below, what does not depend on the length hides what does."""
TIME, MEMORY, GROWTH = 1 / 4, 1 / 20, 1.15
WHOLE = "output_attentions"
LAYERS = range(SHAPES["toy"][2])


def rows_of(length: int) -> list[int]:
    """The prefixes whose last tokens are asked, the prompt itself among them."""
    return sorted({length, *(n for n in parse_lengths("16..16384") if n < length)}, reverse=True)


def run(options: Options) -> Iterator[Finding]:
    lengths = [FIRST_LINEAR, LONGEST, 16384, 65536 if options.full else 32768]
    with Worker("toy") as ours, Worker("toy") as theirs:
        for worker, way in ((ours, "rows"), (theirs, WHOLE)):
            worker.ask(way, rows_of(256), LAYERS)  # libraries allocate what they keep
        for length in (1024, 2048, 4096, LONGEST):
            rounds = 1 if length == LONGEST and not options.full else 3
            yield from _compare(options, ours, theirs, length, rounds)
        peaks = [median(ours.peaks("rows", rows_of(length), LAYERS)) for length in lengths]
    yield alone(
        "c",
        "rows: exponent of memory over length",
        [exponent(lengths, peaks)],
        target=GROWTH,
        at_least=False,
        note=f"from {lengths[0]} to {lengths[-1]} tokens, {peaks[-1] / 2**20:,.0f} MiB there",
    )


def _compare(
    options: Options, ours: Worker, theirs: Worker, length: int, rounds: int
) -> Iterator[Finding]:
    asked, aimed = rows_of(length), length == LONGEST
    whole = theirs.ask(WHOLE, asked, LAYERS, memory=True)
    if whole is None or whole.peak is None:
        options.skip(f"{WHOLE} at {length} tokens: {theirs.reason}")
        return
    own = ours.need("rows", asked, LAYERS)
    difference = max(
        relative_difference(own.numbers[..., part], whole.numbers[..., part])
        for part in (slice(0, 1), slice(1, None))  # the entropy, the largest weights
    )
    peaks = ours.peaks("rows", asked, LAYERS)
    yield compare(
        "c",
        f"rows, {length} tokens: memory over {WHOLE}",
        peaks,
        [float(whole.peak)] * len(peaks),
        unit="bytes",
        target=MEMORY if aimed else None,
        at_least=False,
        note=f"relative difference {difference:.0e}",
        equal=difference <= TOLERANCE,
    )
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        outcome = theirs.ask(WHOLE, asked, LAYERS)
        if outcome is not None:
            times[0].append(ours.need("rows", asked, LAYERS).seconds)
            times[1].append(outcome.seconds)
    if times[0]:
        yield compare(
            "c",
            f"rows, {length} tokens: time over {WHOLE}",
            *times,
            target=TIME if aimed else None,
            at_least=False,
            equal=difference <= TOLERANCE,
        )
