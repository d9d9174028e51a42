"""Probe a model in a process that may not hold it: `python limited.py FOLDER BYTES memory|disk`.

The limit is RLIMIT_DATA: what the process allocates after its imports may be so many bytes. It is
set when the model is loaded, because transformers maps all files of a checkpoint to read their
headers, and such maps count although they take no memory. Prints what the loaded model has
allocated, and the standard deviations that a probe finds under the limit.
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
    before = allocated()
    options = {"device": "cpu"} if way == "memory" else {"device_map": where}
    loaded = load_model(folder, dtype="float32", **options)
    print(json.dumps(allocated() - before))
    resource.setrlimit(resource.RLIMIT_DATA, (before + more, before + more))
    print(json.dumps(std(loaded)))


if __name__ == "__main__":
    main()
