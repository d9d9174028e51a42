"""What exact statistics cost: `Moments.update` against `torch.var_mean` of the same batch.

The figure is the ratio of the medians; it must stay below 4 for 64 prompts and 2048 float32
features. One thread, so that whatever else runs on the machine slows both alike and not the one
with more kernels.
"""

import torch
from measure import alternate

from llmprobe import Moments

LIMIT = 4.0


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    work = {"var_mean": lambda: torch.var_mean(x, dim=0), "update": lambda: moments.update(x)}
    timing = alternate(work, rounds=300, warm_up=20)
    ratio = timing["update"].median / timing["var_mean"].median
    for name, value in timing.items():
        print(f"{name:<10} {value}")
    print(f"ratio      {ratio:9.2f}    (limit {LIMIT})")
    raise SystemExit(ratio > LIMIT)


if __name__ == "__main__":
    main()
