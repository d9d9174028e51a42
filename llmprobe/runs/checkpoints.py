"""Checkpoints: tensors and a few facts in one safetensors file, replaced in one step; and tensors
that processes hand to each other in the same format."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from safetensors.torch import load, save
from torch import Tensor

from llmprobe.base.files import sync
from llmprobe.base.processes import process, process_device
from llmprobe.errors import CheckpointError

_NONE = "none"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write next to it and rename, so that whatever happens the old one or the new one is whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # As arrays: safetensors takes several times as long to look at a tensor as at an array.
    arrays = {name: tensor.numpy() for name, tensor in plain.items()}
    try:
        told = json.dumps(facts)
        save_file(arrays, beside, metadata={"llmprobe": told, "sha256": _checksum(plain, told)})
        beside.chmod(path.parent.stat().st_mode & 0o666)  # for all whom the folder is for
        sync(beside)
        beside.replace(path)
    except (OSError, SafetensorError) as error:  # a full disk, a folder that is gone
        raise CheckpointError(
            f"{path} cannot be written ({error}); what was kept before stays: make room, then run "
            "the same again"
        ) from None
    finally:
        beside.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            facts = json.loads(metadata["llmprobe"])
            if not isinstance(facts, dict):
                raise ValueError("it tells no facts")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Files of older versions have no checksum.
        if metadata.get("sha256", _NONE) not in (_NONE, _checksum(tensors, metadata["llmprobe"])):
            raise ValueError("its checksum is wrong")
        return tensors, facts
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no readable checkpoint ({error}); remove it to have its piece done again"
        ) from None


def read_facts(path: Path) -> dict[str, Any]:
    """The facts alone, without the tensors and unchecked; nothing where they cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["llmprobe"])
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Of everything in a checkpoint."""
    sha = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def gather_tensors(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What all processes have, each of its own names: handed on as safetensors, not as pickles."""
    here = process()
    if here.n_processes == 1:
        return dict(own)
    from accelerate.utils import gather, pad_across_processes

    device = process_device()
    data = save({name: tensor.contiguous().cpu() for name, tensor in own.items()})
    sizes = gather(torch.tensor([len(data)], device=device)).tolist()
    padded = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    every = gather(pad_across_processes(padded)).cpu().view(here.n_processes, -1)
    found: dict[str, Tensor] = {}
    for part, size in zip(every, sizes, strict=True):
        found |= load(part[:size].numpy().tobytes())
    return found


_FOLLOWING = ("prompts_hash", "one_pass")
"""What differs where something else does, which is then enough to tell."""


def check_same(where: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to mix configurations; the error says what differs."""
    have, want = _flat(there), _flat(json.loads(json.dumps(wanted)))
    other = [name for name in sorted({*have, *want}) if have.get(name) != want.get(name)]
    if other:
        other = [name for name in other if name not in _FOLLOWING] or other
        words = ", ".join(f"{n} {have.get(n)!r} (asked: {want.get(n)!r})" for n in other)
        raise CheckpointError(
            f"{where} holds another run: {words}; use another output folder, or overwrite=True"
        )


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """With the entries of `arguments` next to the rest, so that only differences are reported."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        found |= value if name == "arguments" and isinstance(value, Mapping) else {name: value}
    return found
