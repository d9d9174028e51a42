"""Do the lab's intervals hold what other seeds find? One comparison, repeated with fresh seeds.

    python benchmarks/repeats.py                  # argmax, 256 items, ten times eight seeds
    python benchmarks/repeats.py --steps 400      # in five minutes

Each repeat has its own seeds, and with them its own training data, initial weights and test sets.
Intervals of 95 % that are honest hold the mean of all repeats nine or ten times out of ten.
"""

from typing import Annotated

import numpy as np
import typer

from llmprobe import train_synthetic


def main(
    task: str = "argmax",
    variant: str = "layernorm",
    length: Annotated[int, typer.Option(help="Items of a test set.")] = 256,
    repeats: int = 10,
    seeds: Annotated[int, typer.Option(help="Of each repeat.")] = 8,
    steps: int = 2000,
    first_seed: int = 1000,
) -> None:
    found = []
    for number in range(repeats):
        result = train_synthetic(
            task,
            ["baseline", variant],
            lengths=[length],
            seeds=seeds,
            steps=steps,
            first_seed=first_seed + number * seeds,
        )
        [row] = result.compare_frame().to_dict("records")
        found.append([100 * row[name] for name in ("difference", "low", "high")])
        print("{:+.2f} [{:+.2f}, {:+.2f}]".format(*found[-1]), flush=True)
    difference, low, high = np.array(found).T
    mean = difference.mean()
    held = int(((low <= mean) & (mean <= high)).sum())
    print(f"mean {mean:+.2f} points; {held} of {repeats} intervals hold it")


if __name__ == "__main__":
    typer.run(main)
