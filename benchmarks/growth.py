"""Case h: how time and memory of llmprobe grow with the length of the prompt.

Sweeps of layer 0 and of all layers, and attention rows of all layers, of a toy; the number is the
exponent of the power law that fits best. Memory must be linear: attention that is never a matrix.
Time is linear where the layers' weights decide and quadratic where attention does.
"""

from collections.abc import Iterator
from statistics import median

from attention import GROWTH, LAYERS, rows_of
from measure import exponent
from report import Finding, Options, alone
from worker import Worker

from llmprobe import parse_lengths

WORK = {
    "sweep of layer 0": ("llmprobe", range(1)),
    "sweep of all layers": ("llmprobe", LAYERS),
    "rows of all layers": ("rows", LAYERS),
}

N_TIMES = 3


def run(options: Options) -> Iterator[Finding]:
    lengths = parse_lengths("1024..32768" if options.full else "1024..8192")
    for name, (way, layers) in WORK.items():
        seconds, peaks = [], []
        with Worker("toy") as worker:
            worker.need(way, rows_of(256), layers)
            for length in lengths:
                asked = rows_of(length)
                peaks.append(median(worker.peaks(way, asked, layers)))
                times = [worker.need(way, asked, layers).seconds for _ in range(N_TIMES)]
                seconds.append(median(times))
        at = f"at {', '.join(map(str, lengths))} tokens"
        yield alone(
            "h",
            f"{name}: exponent of time over length",
            [exponent(lengths, seconds)],
            at_least=False,
            note=f"{', '.join(f'{1e3 * x:,.0f}' for x in seconds)} ms {at}",
        )
        yield alone(
            "h",
            f"{name}: exponent of memory over length",
            [exponent(lengths, peaks)],
            target=GROWTH,
            at_least=False,
            note=f"{', '.join(f'{x / 2**20:,.0f}' for x in peaks)} MiB {at}",
        )
