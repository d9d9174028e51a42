"""Loading: builtin, hub id, folder or .gguf file  ->  a model ready to be probed, with its facts.

    loaded = load_model("HuggingFaceTB/SmolLM2-135M@main")
    loaded.model, loaded.tokenizer, loaded.describe()

A name is resolved once, to what `from_pretrained` takes and to the commit it stands for; from
there on all kinds share one path. Weights are safetensors and no foreign code runs unless that was
asked for. Whatever fails becomes a `ModelLoadError`: one line, what came and what to do next.
"""

import dataclasses
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as gguf_loader

from llmprobe.base.files import as_path
from llmprobe.base.machine import check_map, resolve_device, resolve_dtype, untracked
from llmprobe.capture.refusals import (
    BUILTIN,
    Place,
    check_causal,
    check_complete,
    check_config,
    check_local,
    check_size,
    explained,
    files_of,
)

_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""Else loading a pickle from the hub asks a bot, in a thread, to convert the repository."""
_BLOCK = 2**22
_NOT_OF_A_MODEL = ("architectures", "dtype", "torch_dtype", "transformers_version")
"""What a config says beside how its model computes; the number type is recorded by itself."""
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


def digest_model(model: nn.Module) -> str:
    """Of the weights and of what the config says of them: another model has another digest."""
    config: Any = getattr(model, "config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    own = {k: v for k, v in facts.items() if k not in _NOT_OF_A_MODEL and not k.startswith("_")}
    told = json.dumps(own, sort_keys=True, default=lambda x: type(x).__name__)
    sha = hashlib.sha256(told.encode())
    for name, weight in model.named_parameters():
        sha.update(repr((name, tuple(weight.shape), _checksum(weight))).encode())
    return sha.hexdigest()


def _checksum(weight: torch.Tensor) -> int:
    """A sum of all bits, each word times its place: exact, and made where the weight is."""
    if weight.device.type == "meta":  # it is on a disk, to be brought when it is needed
        return 0
    total = 0
    for part in weight.detach().reshape(-1).split(_BLOCK):
        bits = part.contiguous().view(torch.uint8)
        words = nn.functional.pad(bits, (0, -bits.numel() % 8)).view(torch.int64)
        places = torch.arange(1, 2 * words.numel(), 2, device=words.device)
        total = (31 * total + int((words * places).sum())) % 2**64
    return total


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
    check_map(device_map)
    target = resolve_device(device)
    number_type = resolve_dtype(dtype, target)
    place = _locate(name, revision)._replace(allow_pickle=allow_pickle)
    with explained(place, target), _quiet(), untracked():
        folder = Path(place.source)
        if place.local:
            check_local(place)
        else:  # the smallest file first: errors come early, and the cache names its commit
            fetched = hf_hub_download(place.source, "config.json", revision=place.revision)
            folder = Path(fetched).parent
            place = place._replace(revision=folder.name)
        options: dict[str, Any] = {
            "revision": place.revision,
            "local_files_only": place.local,
            "trust_remote_code": trust_remote_code,
        }
        if place.gguf is not None:
            # Absolute: transformers would prefer a file of the same name in the working folder.
            options["gguf_file"] = str(place.gguf.absolute())
        if place.gguf is None:
            check_config(folder / "config.json")
        config = AutoConfig.from_pretrained(place.source, **options)
        check_causal(config)
        if device_map is None:
            check_size(config, number_type, target, trust_remote_code)
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
        check_complete(report)
    model.eval().requires_grad_(False)
    return LoadedModel.of(model, tokenizer=tokenizer, name=place.shown, revision=place.revision)


def _locate(name: str | os.PathLike[str], revision: str | None) -> Place:
    """Tell a path from a hub id, without looking into either."""
    given = os.fspath(name)
    if not given.strip():
        raise ValueError(f"model: got {given!r}, accepted: builtin, hub id, folder, .gguf file")
    if revision is not None and not revision.strip():
        raise ValueError(f"revision: got {revision!r}, accepted: a branch, a tag or a commit")
    path = BUILTIN if given == "builtin" else as_path("model", given)
    is_gguf = given.lower().endswith(".gguf")
    looks_local = given.startswith((".", "/", "~")) or "\\" in given or path.is_absolute()
    if not isinstance(name, str) or looks_local or is_gguf or path.exists():
        if revision is not None:
            raise ValueError(f"revision: got {revision!r}, but {given!r} is local; leave it out")
        if is_gguf and not path.is_dir():
            return Place(str(path.parent), path.name, given, local=True, gguf=path)
        shown = path.name.strip(".") or path.resolve().name  # `.` and `..` have a name too
        return Place(str(path), shown, given, local=True)
    repository, _, in_name = given.partition("@")
    if repository == "builtin":
        raise ValueError(f"revision: got {in_name!r}, but 'builtin' is local; leave it out")
    if in_name and revision is not None and in_name != revision:
        raise ValueError(f"revision: got {revision!r} beside {given!r}; give only one of them")
    return Place(repository, repository, given, local=False, revision=in_name or revision)


def _load_tokenizer(place: Place, config: Any, options: Mapping[str, Any]) -> Any:
    """The tokenizer, or None where there is none; one that cannot be read is an error."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.source, config=config, **options)
    except Exception as error:  # a stranger's files, as below
        if place.gguf or any(name.startswith(("tokenizer", "vocab")) for name in files_of(place)):
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        set_hook(hook)
        gguf_loader.tqdm = bar
        del os.environ[_NO_CONVERSION]
        os.environ |= {} if conversion is None else {_NO_CONVERSION: conversion}
