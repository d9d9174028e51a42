"""What a model's files say, checked before any of them is used.

A folder from anybody must not run code, and must end in one line within seconds if it announces
more work than its weights have room for.
"""

import base64
import json
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from llmprobe.capture.refusals import Refusal

_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_MOST_LAYERS, _MOST_EXPERTS = 10_000, 4_096
_CHEAP_LAYERS = 256
"""Made in a second; that weights for them are missing is said after that, by name."""
_MOST_JSON_BYTES = {"config.json": 2**26, "tokenizer.json": 2**28}
_MOST_HEADER_BYTES = 2**27  # the limit of safetensors itself
_MOST_GROWTH = 64
"""Letters that a tokenizer may make of one; Unicode's own forms have up to 18."""
_TYPES = {"I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "I32": "int32"}
"""Names of number types for those of safetensors."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = "if you trust them, use allow_pickle=True"


def check_backend(name: Any, where: str) -> None:
    """Refuse the name of an attention function that transformers would fetch as code."""
    if isinstance(name, Mapping):
        for part in name.values():
            check_backend(part, where)
        return
    if name is None:
        return
    known = ["eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()]
    plain = name.removeprefix("paged|") if isinstance(name, str) else name
    if plain not in known and name not in known:
        shown = ", ".join(one for one in known if not one.startswith("llmprobe_"))
        raise Refusal(
            f"asks for the attention {name!r} {where}, accepted: {shown}; a kernel from the hub is "
            "code: if you trust it, use trust_remote_code=True"
        )


def check_kernel(name: Any, device: torch.device) -> None:
    """Refuse kernels that have no code for a CPU."""
    if device.type == "cpu" and str(name).removeprefix("paged|").startswith("flash"):
        raise Refusal(
            f"cannot run the attention {name!r} on a CPU: its kernels are for GPUs; use sdpa, "
            "eager or flex_attention"
        )


def check_config(path: Path, *, trust_remote_code: bool = False, n_tensors: int | None) -> None:
    """Refuse a config that asks for code, or for more layers than there are weights.

    All layers are created before weights are read.
    """
    config = _read_json(path)
    for name, value in _fields(config):
        if name in ("attn_implementation", "_attn_implementation") and not trust_remote_code:
            check_backend(value, "in its config.json")
        if name in _LAYERS and isinstance(value, int):
            check_layers(name, value, n_tensors)
        if "experts" in name and isinstance(value, int) and value > _MOST_EXPERTS:
            raise Refusal(f"says {name} is {value:,} in its config.json; no model has so many")


def check_layers(name: str, n_layers: int, n_tensors: int | None) -> None:
    if n_layers > _MOST_LAYERS:
        raise Refusal(f"says {name} is {n_layers:,} in its config.json; no model has so many")
    if n_tensors is not None and n_layers > max(n_tensors, _CHEAP_LAYERS):
        raise Refusal(
            f"says {name} is {n_layers:,}, but its weights are {n_tensors:,} tensors, which is "
            "not one for each layer; get its files again"
        )


def check_weights(folder: Path, *, names: Iterable[str], allow_pickle: bool) -> None:
    """Refuse an index of weights that names a pickle or a file elsewhere, and a pickled adapter."""
    names = list(names)
    # PEFT loads an adapter's pickle where there is no safetensors file, without asking.
    if ADAPTER in names and ADAPTER_WEIGHTS not in names and not allow_pickle:
        raise Refusal(f"has an adapter that is no safetensors file, which can run code; {_PICKLES}")
    for name in names:
        index = folder / name
        if name.endswith(".index.json") and index.is_file():
            document = _read_json(index)
            found = document.get("weight_map") if isinstance(document, dict) else None
            files = list(found.values()) if isinstance(found, dict) else []
            _check_names(files, f"in {name}", allow_pickle or not name.endswith("rs.index.json"))
    chosen = _read_json(folder / "config.json")
    explicit = chosen.get("transformers_weights") if isinstance(chosen, dict) else None
    if explicit is not None:
        _check_names([explicit], "in config.json", allow_pickle)


def _check_names(files: Iterable[Any], where: str, allow_pickle: bool) -> None:
    for file in dict.fromkeys(map(str, files)):
        if PurePosixPath(file).name != file or "\\" in file or file in ("", ".", ".."):
            raise Refusal(f"names weights in another folder, {file!r} {where}; get its files again")
        if not file.endswith((".safetensors", ".safetensors.index.json")) and not allow_pickle:
            raise Refusal(f"names weights that are no safetensors, {file!r} {where}; {_PICKLES}")


def tensor_types(files: Iterable[Path]) -> dict[str, str] | None:
    """Type of each tensor in safetensors files, by name; None if a file cannot be read."""
    found: dict[str, str] = {}
    for path in files:
        with path.open("rb") as file:
            head = file.read(8)
            size = int.from_bytes(head, "little")
            if len(head) < 8 or size > min(_MOST_HEADER_BYTES, path.stat().st_size):
                return None
            try:
                header = json.loads(file.read(size))
            except (ValueError, RecursionError):
                return None
        for name, facts in header.items() if isinstance(header, dict) else ():
            if isinstance(facts, dict) and name != "__metadata__":
                found[name] = str(facts.get("dtype"))
    return found


def check_types(types: Mapping[str, str], config: Path) -> None:
    """Refuse weights that are no real numbers: they would be converted without a word."""
    document = _read_json(config)
    if isinstance(document, dict) and document.get("quantization_config") is not None:
        return  # then the config says what the integers stand for
    for name, kind in types.items():
        if name.endswith(".weight") and not kind.startswith(("F", "BF")):
            raise Refusal(
                f"has {_TYPES.get(kind, kind)} numbers in {name} and no quantization_config that "
                "says what they stand for; use weights of a float type"
            )


def check_tokenizer(path: Path) -> None:
    """Refuse a tokenizer that makes very many letters of one: a text would fill the memory."""
    if not path.is_file():
        return
    try:
        document = _read_json(path)
    except ValueError:  # its own reader says what is wrong with it
        return
    if not isinstance(document, dict):
        return
    growth = 1
    for part in ("normalizer", "pre_tokenizer"):
        for step in _steps(document.get(part)):
            growth *= _growth(step)
    for step in _steps(document.get("post_processor")):
        growth *= max(1, sum("Sequence" in str(item) for item in step.get("single") or ()))
    if growth > _MOST_GROWTH:
        raise Refusal(
            f"has a tokenizer.json that makes {growth:,} letters of one, accepted: up to "
            f"{_MOST_GROWTH}; get its files again"
        )


def _growth(step: Mapping[str, Any]) -> int:
    """Letters that a step of a tokenizer can make of one."""
    kind = step.get("type")
    if kind == "Replace":
        return max(1, len(str(step.get("content", ""))))
    if kind == "Prepend":
        return 1 + len(str(step.get("prepend", ""))) // 16
    if kind == "Precompiled":  # a table: its size, its search tree, then texts that end in NUL
        data = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
        (size,) = struct.unpack_from("<I", data) if len(data) >= 4 else (0,)
        return max(1, max(map(len, data[4 + size :].split(b"\0"))) // 4)
    return 1


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(part, dict):
        return
    yield part
    for name in ("normalizers", "pretokenizers", "processors"):
        for step in part.get(name) or ():
            yield from _steps(step)


def _fields(document: Any) -> Iterator[tuple[str, Any]]:
    """Every field of a document, however deep."""
    stack = [document]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield from part.items()
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)


def check_file(path: Path) -> None:
    """Refuse what is no plain file, such as a link to a device, which may have no end."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise Refusal(f"has a {path.name} that is no plain file; get its files again")


def _read_json(path: Path) -> Any:
    check_file(path)
    most = _MOST_JSON_BYTES.get(path.name, 2**26)
    size = path.stat().st_size
    if size > most:
        raise Refusal(f"has a {path.name} of {size:,} bytes, which is no model's")
    data = path.read_bytes()
    if b"\0" in data[:4096]:
        raise Refusal(f"has a {path.name} that is not a text; get its files again")
    return json.loads(re.sub(rb"^\xef\xbb\xbf", b"", data))
