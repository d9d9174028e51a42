"""A process that holds one model and sweeps it when asked; what it cannot do kills it alone.

    with Worker("llama_1b", n_layers=2) as worker:
        outcome = worker.ask("hooks, early stop", [1024, 512], [0])

The parent writes a JSON line with the way, lengths and layers; the answer has the seconds, the peak
memory if it was asked for, and the file with the numbers. A request also carries the memory that
may be taken: more ends in an error and not in a machine that swaps.
"""

import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from numpy.typing import NDArray

MOST_BYTES = 16 * 2**30
SHARE = 0.8
"""Of the memory that is free, so much may be taken."""
START_SECONDS = 300.0
N_PEAKS = 5
SHORT = 0.3


@dataclass(frozen=True)
class Outcome:
    seconds: float
    peak: int | None
    """Bytes beyond what the process had before."""
    numbers: NDArray[np.float32]
    others: float
    """Share of the machine that other work took meanwhile: with much of it, times say little."""


class Worker:
    """The parent's end: starts the process when it is first asked, and again after a death."""

    def __init__(
        self, shape: str, *, n_layers: int | None = None, path: Path | None = None
    ) -> None:
        self.arguments = [shape, str(n_layers or ""), str(path or "")]
        self.process: subprocess.Popen[bytes] | None = None
        self.reason = ""
        """Why the last request was not answered."""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        way: str,
        lengths: Sequence[int],
        layers: Sequence[int],
        *,
        memory: bool = False,
        patience: float = 600.0,
    ) -> Outcome | None:
        """None if the sweep did not survive: too much memory, too long, or any other error."""
        if not self._start():
            return None
        limit = min(MOST_BYTES, int(SHARE * psutil.virtual_memory().available))
        with tempfile.TemporaryDirectory() as folder:
            numbers = Path(folder) / "numbers.npy"
            request = {
                "way": way,
                "lengths": list(lengths),
                "layers": list(layers),
                "memory": memory,
                "limit": limit,
                "numbers": str(numbers),
            }
            before, start = _busy_seconds(), time.perf_counter()
            answer = self._exchange(request, patience)
            wall, busy = time.perf_counter() - start, _busy_seconds() - before
            if answer is None or "error" in answer:
                self.reason = self.reason if answer is None else answer["error"]
                self.close()  # an error may leave memory behind
                return None
            others = (busy - answer["processor"]) / (wall * (psutil.cpu_count() or 1))
            # The system counts in ticks of 10 ms: of a short sweep they say nothing.
            others = max(others, 0.0) if wall > SHORT else 0.0
            return Outcome(answer["seconds"], answer["peak"], np.load(numbers), others)

    def need(
        self, way: str, lengths: Sequence[int], layers: Sequence[int], **options: Any
    ) -> Outcome:
        """For what must survive."""
        outcome = self.ask(way, lengths, layers, **options)
        if outcome is None:
            raise RuntimeError(f"{way} did not survive {max(lengths)} tokens: {self.reason}")
        return outcome

    def peaks(self, way: str, lengths: Sequence[int], layers: Sequence[int]) -> list[float]:
        """Bytes of several sweeps: how an allocator's heap lies is a matter of chance."""
        found = [self.need(way, lengths, layers, memory=True).peak for _ in range(N_PEAKS)]
        return [float(peak) for peak in found if peak is not None]

    def _start(self) -> bool:
        if self.process is not None:
            return True
        command = [sys.executable, __file__, *self.arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        ready = self._exchange(None, START_SECONDS)
        if ready is None:
            self.close()
        return ready is not None

    def _exchange(self, request: dict[str, Any] | None, patience: float) -> dict[str, Any] | None:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        try:
            if request is not None:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], patience)[0]:
                self.reason = f"more than {patience:.0f} s"
                return None
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self.reason = f"the process died with {self.process.wait()}"
            return None
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _busy_seconds() -> float:
    """Of all processors, since the machine started; what a host takes away included."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + getattr(times, "steal", 0.0)


def serve(requests: IO[str], answers: IO[str], shape: str, n_layers: str, path: str) -> None:
    """The child's end. All is imported here, so that the parent does without."""
    import torch
    from measure import peak_memory
    from shapes import build, prompt
    from ways import WAYS

    model = build(shape, int(n_layers) if n_layers else None, Path(path) if path else None)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        lengths, layers = request["lengths"], request["layers"]
        tokens = prompt(model, max(lengths))
        way = WAYS[request["way"]]

        def run() -> tuple[float, torch.Tensor]:
            start = time.perf_counter()
            with torch.inference_mode():
                numbers = way(model, tokens, lengths, layers)  # noqa: B023
            return time.perf_counter() - start, numbers

        answer: dict[str, Any]
        processor = time.process_time()
        try:
            with limited(request["limit"]):
                peak, (seconds, numbers) = peak_memory(run) if request["memory"] else (None, run())
        except Exception as error:  # whatever it is, the parent should hear of it
            # The kind alone: messages may carry paths, and reasons go into reports.
            memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
            answer = {"error": "out of memory" if memory else type(error).__name__}
        else:
            processor = time.process_time() - processor
            answer = {"seconds": seconds, "peak": peak, "processor": processor}
            np.save(request["numbers"], numbers.float().numpy())
        print(json.dumps(answer), file=answers, flush=True)


@contextmanager
def limited(n_bytes: int) -> Iterator[None]:
    """So many bytes of address space beyond what the process has."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (has + n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def main() -> None:
    # Libraries print what they like: to the errors, and the answers go where nobody else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    serve(sys.stdin, answers, *sys.argv[1:])


if __name__ == "__main__":
    main()
