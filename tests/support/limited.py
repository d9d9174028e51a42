"""Probe a model in a process that may not hold it: `python limited.py FOLDER BYTES memory|disk`.

The limit is RLIMIT_DATA, set after the imports to what they take and so many bytes more. It counts
what a process allocates; files that are mapped for reading, such as libraries, do not count.
safetensors maps a whole file at a time and may write to its copy, so that does: a checkpoint has to
be in several files. Prints the standard deviations that a probe finds.
"""

import json
import resource
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from llmprobe import load_model, probe_variance


def allocated() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))


def places(folder: Path) -> dict[str, str]:
    """Every layer on disk; what is used in each forward stays in memory."""
    config = AutoModelForCausalLM.from_pretrained(folder, device_map="meta")
    names = ["model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"]
    layers = {f"model.layers.{n}": "disk" for n in range(len(config.model.layers))}
    return dict.fromkeys(names, "cpu") | layers


def std(model: object) -> list[float]:
    result = probe_variance(model, [8, 16], layers="all", n_prompts=4, batch_tokens=16)
    return result.std_median.ravel().tolist()


def main() -> None:
    folder, more, way = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    where = places(folder)
    probe_variance("builtin", [8, 16], n_prompts=4)  # imports what a probe imports
    limit = allocated() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    options = {"device": "cpu"} if way == "memory" else {"device_map": where}
    print(json.dumps(std(load_model(folder, dtype="float32", **options))))


if __name__ == "__main__":
    main()
