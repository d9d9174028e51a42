"""What exact statistics cost: `Moments.update` against `torch.var_mean` of the same batch.

Both are timed in turns in one process; the figure is the ratio of the medians. It must stay
below 4 for a batch of 64 prompts and 2048 float32 features. One thread, so that whatever else runs
on the machine slows both alike and not the one with more kernels.
"""

import statistics
import time

import torch

from llmprobe import Moments

ROUNDS = 300
LIMIT = 4.0


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    work = {"var_mean": lambda: torch.var_mean(x, dim=0), "update": lambda: moments.update(x)}
    times: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(ROUNDS + 20):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if round_number >= 20:  # the first rounds warm up
                times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = median["update"] / median["var_mean"]
    for name, value in median.items():
        print(f"{name:<9} {value * 1e6:8.1f} µs (median of {ROUNDS})")
    print(f"ratio     {ratio:8.2f}    (limit {LIMIT})")
    raise SystemExit(ratio > LIMIT)


if __name__ == "__main__":
    main()
