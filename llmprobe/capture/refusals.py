"""Why a model cannot be loaded: found before loading where possible, one line each.

    with explained(place, device):
        check_local(place)
        ...

A `Refusal` inside, or anything that transformers raises over a model's files, becomes a
`ModelLoadError` with the cause and the next step.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants, get_token, is_offline_mode, list_repo_files
from huggingface_hub import errors as hub
from safetensors import SafetensorError

from llmprobe.base.machine import free_memory
from llmprobe.errors import ModelLoadError

BUILTIN = Path(__file__).parent / "builtin"


class Refusal(Exception):
    """The reason why a model is refused; the message puts the model's name before it."""


class Place(NamedTuple):
    source: str  # what `from_pretrained` takes: a folder or a hub id
    shown: str  # for display, without its path
    given: str  # as the user wrote it, for error messages
    local: bool
    revision: str | None = None
    gguf: Path | None = None
    allow_pickle: bool = False


def check_local(place: Place) -> None:
    path = place.gguf or Path(place.source)
    if not path.exists():
        builtin = "is missing from this installation; reinstall llmprobe"
        raise Refusal(builtin if path == BUILTIN else "does not exist; check the path")
    if place.gguf is not None:
        if not path.is_file():
            raise Refusal("is no plain file; give a .gguf file")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise Refusal("is no GGUF file, whatever its name says; download it again")
        if find_spec("gguf") is None:
            raise Refusal("needs the gguf package: pip install 'llmprobe[gguf]'")
    elif not path.is_dir():
        raise Refusal("is a file, but no .gguf; give the folder that holds config.json")
    elif problem := _file_problem(files_of(place), place.allow_pickle):
        raise Refusal(problem)


def check_size(empty: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse what cannot fit before loading it: out of memory on a CPU may kill the process.

    `empty` has the model's shapes.
    """
    if getattr(empty.config, "quantization_config", None) is not None:
        return  # quantized weights have other sizes
    need = sum(weight.numel() for weight in empty.parameters()) * dtype.itemsize
    need += sum(buffer.numel() * buffer.element_size() for buffer in empty.buffers())
    free = free_memory(device)
    if need > free:
        raise Refusal(
            f"needs {need / 2**30:,.1f} GiB for its weights, and {free / 2**30:,.1f} GiB are free "
            f'on {device}; try dtype="bfloat16" or device_map="auto"'
        )


def files_of(place: Place) -> list[str]:
    if place.local:
        return sorted(entry.name for entry in Path(place.source).iterdir())
    return list(list_repo_files(place.source, revision=place.revision))


def _file_problem(files: Sequence[str], allow_pickle: bool) -> str | None:
    """What is missing from a model's folder or repository, by the names of its files."""
    gguf = [name for name in files if name.lower().endswith(".gguf")]
    pickle = any(name.startswith("pytorch_model") and name.endswith(".bin") for name in files)
    if not files:
        return "is an empty folder; give one that holds config.json and weights"
    if "config.json" not in files:
        if "result.json" in files:
            return "is a result, not a model; open it with llmprobe.load_result"
        if gguf:
            return f"has no config.json; give the path of a GGUF file on this disk, like {gguf[0]}"
        return "has no config.json, so it is no model; give a folder that save_pretrained wrote"
    if any(name.endswith(".safetensors") for name in files) or (pickle and allow_pickle):
        return None
    if pickle:
        return (
            "has no safetensors weights, only a pickle (.bin); if you trust it, use "
            "allow_pickle=True"
        )
    return "has a config.json but no weights; give a folder with .safetensors files"


def check_complete(report: Mapping[str, Any]) -> None:
    """Refuse missing weights, which transformers would fill with random numbers."""
    wrong = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
    if wrong:
        raise Refusal(
            f"lacks weights that fit its config.json: {min(wrong)} and {len(wrong) - 1} more; "
            "use a complete model"
        )


@contextmanager
def explained(place: Place, device: torch.device) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # files of unknown origin can make transformers raise anything
        refusal = isinstance(error, Refusal)
        text = str(error) if refusal else _explain(error, place, device)
        given = place.given if place.given.isprintable() else repr(place.given)
        line = " ".join(f"{given} {text}".split())
        raise ModelLoadError(line) from (None if refusal else error)


def _explain(error: BaseException, place: Place, device: torch.device) -> str:
    """The cause and the next step; the caller puts the name before it."""
    page = f"{constants.ENDPOINT}/{place.source}"
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    version = f"transformers {transformers.__version__}"
    unknown = f"cannot be loaded by {version} ({reason}); check its files, or try another version"
    memory = f'does not fit in the memory of {device}; try dtype="bfloat16" or device_map="auto"'
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    gated = f"is gated; accept its terms at {page}, then `hf auth login` or set HF_TOKEN"
    # Only read the token when it is needed: with a wrong HF_HOME reading it fails.
    if any(isinstance(cause, hub.GatedRepoError) for cause in causes) and get_token() is not None:
        gated = f"is gated and your token has no access; ask for it at {page}"
    why = "HF_HUB_OFFLINE is set" if is_offline_mode() else "the hub cannot be reached"
    offline = f"is not all in the cache and {why}; run `hf download {place.source}` when online"
    # The first match counts, so a subclass comes before its base class.
    known: list[tuple[type[BaseException], str]] = [
        (torch.OutOfMemoryError, memory),
        (MemoryError, memory),
        (hub.GatedRepoError, gated),
        (hub.RevisionNotFoundError, f"has no revision {place.revision!r}; see {page}/commits"),
        (
            hub.RepositoryNotFoundError,
            "is no local folder, and not on the hub or private; check the name, or `hf auth login`",
        ),
        (hub.HFValidationError, "is no local folder and cannot be a hub id; check the path"),
        (hub.LocalEntryNotFoundError, offline),
        (ConnectionError, offline),
        (ImportError, f"needs a package that is not installed ({reason})"),  # flash kernels
        (SafetensorError, f"has damaged or truncated weights ({reason}); get them again"),
    ]
    for cause in causes:
        for kind, text in known:
            if isinstance(cause, kind):
                return text
    if "DefaultCPUAllocator" in str(error):
        return memory
    if place.gguf is not None:
        return f"is damaged, or a GGUF that transformers cannot read ({reason}); try another file"
    if "trust_remote_code" in str(error):
        return "comes with its own code; read it, and if you trust it, use trust_remote_code=True"
    if not place.local and isinstance(error, OSError):
        # transformers does not distinguish missing weights from weights it could not fetch.
        try:
            return _file_problem(files_of(place), place.allow_pickle) or unknown
        except OSError:
            return offline
    return unknown
