"""A device against the CPU: equal numbers, and what a probe costs there over bare forwards.

    python benchmarks/device.py --device cuda
    python benchmarks/device.py --device cuda --model meta-llama/Llama-3.2-1B --lengths 16..4096

Three ways over the same prompts: bare forwards; `probe_variance` of all heads; hooks that bring
every layer's outputs to the host, as a notebook does. The exit code is 1 if the device's slopes
differ from the CPU's by more than rounding explains.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from llmprobe import load_model, parse_lengths, probe_variance
from llmprobe.base.machine import describe_memory, resolve_device
from llmprobe.capture.discovery import attention_layers
from llmprobe.probes.prompts import make_prompts

CLOSE = {"float32": 2e-3, "float64": 1e-6}
"""Largest difference of a slope; other number types are not compared with the CPU."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", required=True, help="cuda, cuda:1, mps, xpu, sim")
    parser.add_argument("--model", default="builtin", help="as llmprobe takes it")
    parser.add_argument("--lengths", default="16..1024")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--dtype", default="float32", help="float32 is compared with the CPU")
    given = parser.parse_args()
    if given.device.startswith("sim"):
        start_simulated()
    device = resolve_device(given.device)
    loaded = load_model(given.model, device=device, dtype=given.dtype)
    ways = {
        "bare forwards": lambda: bare(loaded, given),
        "llmprobe": lambda: probe(loaded, given),
        "hooks that fetch": lambda: hooked(loaded, given),
    }
    seconds = {}
    for name, run in ways.items():
        run()  # the first time compiles kernels and fills caches
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        seconds[name] = time.perf_counter() - start
    for name, taken in seconds.items():
        share = taken / seconds["bare forwards"]
        print(f"{name:18} {taken:8.3f} s  {share:6.2f} × bare forwards")
    if words := describe_memory(device, peak=True):
        print(words)
    if given.dtype not in CLOSE:
        print(f"{given.dtype}: not compared with the CPU; use --dtype float32")
        return
    there = probe(loaded, given).decay_frame()
    loaded.model.to("cpu")
    here = probe(loaded, given).decay_frame()
    worst = float(np.nanmax(np.abs(there.slope.to_numpy() - here.slope.to_numpy())))
    print(f"slopes of {len(here)} heads: largest difference from the CPU {worst:.1e}")
    if not worst <= CLOSE[given.dtype]:
        sys.exit(f"slopes differ by {worst:.1e}, more than {CLOSE[given.dtype]:.0e}")


def start_simulated() -> None:
    """The device of the tests: its numbers are those of the CPU, and its times say nothing."""
    sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
    import simulated

    simulated.start()


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def probe(loaded, given):
    return probe_variance(loaded, given.lengths, layers="all", at="heads", n_prompts=given.prompts)


def batches(loaded, given):
    """The prompts of the probe, in batches of its size."""
    lengths = parse_lengths(given.lengths)
    size = max(1, min(given.prompts, 65536 // max(lengths)))
    prompts = make_prompts(
        "random", n_prompts=given.prompts, lengths=lengths, vocab_size=loaded.vocab_size
    )
    where = next(loaded.model.parameters()).device
    for first in range(0, given.prompts, size):
        indices = list(range(first, min(first + size, given.prompts)))
        yield prompts.batch(indices, max(lengths)).to(where)


def bare(loaded, given):
    with torch.inference_mode():
        for tokens in batches(loaded, given):
            loaded.model.get_decoder()(tokens, use_cache=False)


def hooked(loaded, given):
    """Outputs of every layer and length, brought to the host in each hook."""
    found, at = [], [length - 1 for length in parse_lengths(given.lengths)]

    def keep(module, args, output):
        found.append(output[0][:, at].cpu())

    handles = [
        loaded.model.get_submodule(layer.path).register_forward_hook(keep)
        for layer in attention_layers(loaded.model)
    ]
    try:
        bare(loaded, given)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([x.double().var(0) for x in found])


if __name__ == "__main__":
    main()
