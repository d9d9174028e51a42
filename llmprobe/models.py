"""Loading: builtin, hub id, folder or .gguf file  ->  a model ready to be probed, with its facts.

    loaded = load_model("HuggingFaceTB/SmolLM2-135M@main")
    loaded.model, loaded.tokenizer, loaded.describe()

A name is resolved once, to what `from_pretrained` takes and to the commit it stands for; from
there on all kinds share one path. Weights are safetensors and no foreign code runs unless that was
asked for. Whatever fails becomes a `ModelLoadError`: one line, what came and what to do next.
"""

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants, get_token, hf_hub_download, is_offline_mode, list_repo_files
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as gguf_loader

from llmprobe.errors import ModelLoadError
from llmprobe.runtime import resolve_device, resolve_dtype

_BUILTIN = Path(__file__).parent / "builtin"
_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""Else loading a pickle from the hub asks a bot, in a thread, to convert the repository."""
_LOOKED_AT = 16
_SPARE_ROWS = 8
"""A table of positions may have a few rows more than positions: OPT and BART keep two."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A causal language model in eval mode, without gradients, and what is known about it."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    """None where the folder has none: such a model can be probed with random tokens only."""
    name: str
    """For display: the hub id, or the last part of a path."""
    revision: str | None
    """Resolved commit of a hub model."""
    dtype: str
    device: str
    """Kind of device: cpu, cuda, mps."""
    attention: str
    """Attention backend, such as sdpa."""
    context_length: int | None
    """The length the model was made for, as its config says; None where it does not say."""
    learned_positions: int | None
    """The longest prompt that a learned table of positions can serve; None where there is none."""
    layer_types: tuple[str, ...] | None
    """By layer, in transformers' words (full_attention, sliding_attention); None if undeclared."""
    vocab_size: int
    bos_token_id: int | None
    """The tokenizer's; without a tokenizer, the config's."""
    adds_bos: bool
    """Whether the tokenizer begins every text with the BOS token."""

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        tokenizer: Any = None,
        name: str | None = None,
        revision: str | None = None,
    ) -> "LoadedModel":
        """The facts of a model that is there already; a module of one's own may have no config."""
        config: Any = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        embedding = model.get_input_embeddings()
        weight = next(embedding.parameters())
        context_length = getattr(config, "max_position_embeddings", None)
        types = getattr(config, "layer_types", None)
        bos = getattr(config if tokenizer is None else tokenizer, "bos_token_id", None)
        adds_bos = tokenizer is not None and bos is not None and tokenizer("x").input_ids[0] == bos
        return cls(
            model=model,
            tokenizer=tokenizer,
            name=name or type(model).__name__,
            revision=revision,
            dtype=str(weight.dtype).removeprefix("torch."),
            device=weight.device.type,
            attention=str(getattr(config, "_attn_implementation", "own")),
            context_length=context_length,
            learned_positions=_learned_positions(model, context_length),
            layer_types=None if types is None else tuple(types),
            # Not the rows of the weight: an embedding of one's own may be no table.
            vocab_size=getattr(config, "vocab_size", None) or embedding.num_embeddings,
            bos_token_id=bos,
            adds_bos=adds_bos,
        )

    def describe(self) -> dict[str, Any]:
        """The plain facts: everything but the model and the tokenizer."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("model", "tokenizer")]
        return {name: getattr(self, name) for name in names}


def digest_weights(model: nn.Module) -> str:
    """SHA-256 over sixteen numbers of every tensor: other weights of the same shape show in it."""
    sha = hashlib.sha256()
    for name, weight in model.named_parameters():
        sha.update(repr((name, tuple(weight.shape))).encode())
        if weight.device.type != "meta":  # else it is on a disk, to be brought when it is needed
            flat = weight.detach().reshape(-1)
            some = flat[:: max(1, flat.numel() // _LOOKED_AT)][:_LOOKED_AT]
            sha.update(some.cpu().double().numpy().astype("<f8").tobytes())
    return sha.hexdigest()


class _Refusal(Exception):
    """Something to tell the user; the text goes behind the model's name."""


class _Place(NamedTuple):
    source: str  # what `from_pretrained` takes: a folder or a hub id
    shown: str  # for display, without its path
    given: str  # as the user wrote it, for error messages
    local: bool
    revision: str | None = None
    gguf: Path | None = None
    allow_pickle: bool = False


def load_model(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    attention: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a causal language model from the hub, a folder, a `.gguf` file, or the `builtin` one.

    A name is a path if it exists, begins with `.`, `/` or `~`, or ends in `.gguf`; a path never
    reaches for the network. `id@revision` chooses a branch, tag or commit. `attention` is the
    backend (sdpa, eager, ...), the model's own default if None. `device_map` is accelerate's and
    stands instead of `device`.
    """
    if device_map is not None and device != "auto":
        raise ValueError(f"device: got {str(device)!r} beside a device_map; give only one of them")
    target = resolve_device(device)
    number_type = resolve_dtype(dtype, target)
    place = _locate(name, revision)._replace(allow_pickle=allow_pickle)
    with _explained(place, target), _quiet():
        if place.local:
            _check_local(place)
        else:  # the smallest file first: errors come early, and the cache names its commit
            fetched = hf_hub_download(place.source, "config.json", revision=place.revision)
            place = place._replace(revision=Path(fetched).parent.name)
        options: dict[str, Any] = {
            "revision": place.revision,
            "local_files_only": place.local,
            "trust_remote_code": trust_remote_code,
        }
        if place.gguf is not None:
            # Absolute: transformers would prefer a file of the same name in the working folder.
            options["gguf_file"] = str(place.gguf.absolute())
        config = AutoConfig.from_pretrained(place.source, **options)
        _check_causal(config)
        tokenizer = _load_tokenizer(place, config, options)
        if place.gguf is not None and hasattr(transformers, "GgufConfig"):
            # Else some weights stay packed, with kernels and an attention fetched from the hub.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model, report = AutoModelForCausalLM.from_pretrained(
            place.source,
            config=config,
            dtype=number_type,
            device_map={"": target} if device_map is None else device_map,
            attn_implementation=attention,
            use_safetensors=None if allow_pickle else True,
            # What does not fit is reported, and refused below with its name.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
        _check_complete(report)
    model.eval().requires_grad_(False)
    return LoadedModel.of(model, tokenizer=tokenizer, name=place.shown, revision=place.revision)


def _locate(name: str | os.PathLike[str], revision: str | None) -> _Place:
    """Tell a path from a hub id, without looking into either."""
    given = os.fspath(name)
    if not given:
        raise ValueError("name: got '', accepted: builtin, a hub id, a folder, a .gguf file")
    path = _BUILTIN if given == "builtin" else Path(given).expanduser()
    is_gguf = given.lower().endswith(".gguf")
    looks_local = given.startswith((".", "/", "~")) or "\\" in given or path.is_absolute()
    if not isinstance(name, str) or looks_local or is_gguf or path.exists():
        if revision is not None:
            raise ValueError(f"revision: got {revision!r}, but {given!r} is local and has none")
        if is_gguf and not path.is_dir():
            return _Place(str(path.parent), path.name, given, local=True, gguf=path)
        shown = path.name.strip(".") or path.resolve().name  # `.` and `..` have a name too
        return _Place(str(path), shown, given, local=True)
    repository, _, in_name = given.partition("@")
    if in_name and revision is not None and in_name != revision:
        raise ValueError(f"revision: got {revision!r} beside {given!r}; give only one of them")
    return _Place(repository, repository, given, local=False, revision=in_name or revision)


def _check_local(place: _Place) -> None:
    path = place.gguf or Path(place.source)
    if not path.exists():
        builtin = "is missing from this installation; reinstall llmprobe"
        raise _Refusal(builtin if path == _BUILTIN else "does not exist; check the path")
    if place.gguf is not None:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise _Refusal("is no GGUF file, whatever its name says; download it again")
        if find_spec("gguf") is None:
            raise _Refusal("needs the gguf package: pip install 'llmprobe[gguf]'")
    elif path.is_file():
        raise _Refusal("is a file, but no .gguf; give the folder that holds config.json")
    elif problem := _file_problem(_files(place), place.allow_pickle):
        raise _Refusal(problem)


def _files(place: _Place) -> list[str]:
    if place.local:
        return sorted(entry.name for entry in Path(place.source).iterdir())
    return list(list_repo_files(place.source, revision=place.revision))


def _file_problem(files: Sequence[str], allow_pickle: bool) -> str | None:
    """What a model's folder or repository lacks, by the names of its files."""
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
        return "has no safetensors weights, only a pickle (.bin); if you trust it, use allow_pickle"
    return "has a config.json but no weights; give a folder with .safetensors files"


def _check_causal(config: Any) -> None:
    """By what transformers declares about the config's class, before any weights are fetched."""
    family = type(config)
    masked = family in transformers.MODEL_FOR_MASKED_LM_MAPPING
    foreign = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if getattr(config, "is_encoder_decoder", False):
        kind = "an encoder-decoder"
    elif masked and not getattr(config, "is_decoder", False):
        # transformers would load it as a causal one, with attention in both directions.
        kind = "an encoder"
    elif family not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not foreign:
        kind = "of another kind"
    else:
        return
    architecture = (config.architectures or [family.__name__])[0]
    raise _Refusal(f"is {architecture}, {kind}; llmprobe needs a causal language model")


def _check_complete(report: Mapping[str, Any]) -> None:
    """transformers fills what a file lacks with random numbers, which nobody wants to probe."""
    wrong = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
    if wrong:
        raise _Refusal(
            f"lacks weights that fit its config.json: {min(wrong)} and {len(wrong) - 1} more; "
            "use a complete causal language model"
        )


def _load_tokenizer(place: _Place, config: Any, options: Mapping[str, Any]) -> Any:
    """The tokenizer, or None where there is none; one that cannot be read is an error."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.source, config=config, **options)
    except Exception as error:  # a stranger's files, as below
        if place.gguf or any(name.startswith(("tokenizer", "vocab")) for name in _files(place)):
            raise RuntimeError(f"its tokenizer: {error}") from error
        return None
    # Without files, transformers makes some up that know their special tokens and nothing else.
    known = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    return tokenizer if known else None


def _learned_positions(model: Any, positions: int | None) -> int | None:
    """By an embedding outside the layers, not of tokens, with about a row for each position."""
    if positions is None:
        return None
    decoder = model.get_decoder()
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList)]
    others = {
        model.get_input_embeddings(),
        *(inner for outer in lists for inner in outer.modules()),
    }
    tables = [m for m in decoder.modules() if isinstance(m, nn.Embedding) and m not in others]
    fits = any(0 <= table.num_embeddings - positions <= _SPARE_ROWS for table in tables)
    return positions if fits else None


@contextmanager
def _quiet() -> Iterator[None]:
    """No chatter while others load, bars on a terminal only; afterwards all is as it was."""
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, conversion = [x.level for x in loggers], os.environ.pop(_NO_CONVERSION, None)
    set_hook: Callable[..., Any] = getattr(transformers.logging, "set_tqdm_hook", lambda _: None)
    hook = set_hook(lambda make, args, options: make(*args, **{**options, "disable": None}))
    bar = gguf_loader.tqdm  # GGUF files have their own, which no switch reaches
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        gguf_loader.tqdm = partial(bar, disable=None)
        os.environ[_NO_CONVERSION] = "1"
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        set_hook(hook)
        gguf_loader.tqdm = bar
        del os.environ[_NO_CONVERSION]
        os.environ |= {} if conversion is None else {_NO_CONVERSION: conversion}


@contextmanager
def _explained(place: _Place, device: torch.device) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a stranger's files can make transformers raise anything
        refusal = isinstance(error, _Refusal)
        text = str(error) if refusal else _explain(error, place, device)
        line = " ".join(f"{place.given} {text}".split())
        raise ModelLoadError(line) from (None if refusal else error)


def _explain(error: BaseException, place: _Place, device: torch.device) -> str:
    """What went wrong and the next step; the caller puts the name before it."""
    page = f"{constants.ENDPOINT}/{place.source}"
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    unknown = f"cannot be loaded by transformers {transformers.__version__} ({reason})"
    memory = f"does not fit into the memory of {device}; try dtype bfloat16 or device_map auto"
    gated = f"is gated and your token has no access; ask for it at {page}"
    if get_token() is None:
        gated = f"is gated; accept its terms at {page}, then `hf auth login` or set HF_TOKEN"
    why = "HF_HUB_OFFLINE is set" if is_offline_mode() else "the hub cannot be reached"
    offline = f"is not all in the cache and {why}; run `hf download {place.source}` when online"
    # The first that fits, so the narrower class comes before its base.
    known: list[tuple[type[BaseException], str]] = [
        (torch.OutOfMemoryError, memory),
        (MemoryError, memory),
        (hub.GatedRepoError, gated),
        (hub.RevisionNotFoundError, f"has no revision {place.revision!r}; see {page}/commits"),
        (
            hub.RepositoryNotFoundError,
            "is no folder here, and not on the hub or private; check the name, or `hf auth login`",
        ),
        (hub.HFValidationError, "is no folder here and cannot be a hub id; check the path"),
        (hub.LocalEntryNotFoundError, offline),
        (ConnectionError, offline),
        (SafetensorError, f"has damaged or truncated weights ({reason}); get them again"),
    ]
    cause: BaseException | None = error
    while cause is not None:
        for kind, text in known:
            if isinstance(cause, kind):
                return text
        cause = cause.__cause__
    if "DefaultCPUAllocator" in str(error):
        return memory
    if place.gguf is not None:
        return f"is damaged, or a GGUF that transformers cannot read ({reason}); try another file"
    if "trust_remote_code" in str(error):
        return "brings code of its own; read it, and if you trust it, use trust_remote_code"
    if not place.local and isinstance(error, OSError):
        # transformers does not tell weights that are not there from those it could not fetch.
        try:
            return _file_problem(_files(place), place.allow_pickle) or unknown
        except OSError:
            return offline
    return unknown
