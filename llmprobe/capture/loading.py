"""Loading: builtin, hub id, folder or .gguf file  ->  a model ready to be probed, with its facts.

    loaded = load_model("HuggingFaceTB/SmolLM2-135M@main")
    loaded.model, loaded.tokenizer, loaded.describe()

A name is resolved once, to the arguments of `from_pretrained` and to a commit; after that all kinds
of models share one path. By default only safetensors weights are read and no code from the model
runs. Every failure becomes a `ModelLoadError`: one line with the cause and the next step.

Public functions take a name, a module or a `LoadedModel`; `as_loaded` and `module_of` turn any of
them into what the function needs.
"""

import dataclasses
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import nn
from transformers import AutoConfig, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as gguf_loader

from llmprobe.base.files import as_path
from llmprobe.base.machine import check_map, resolve_device, resolve_dtype, untracked
from llmprobe.capture.contents import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    check_backend,
    check_config,
    check_file,
    check_kernel,
    check_layers,
    check_tokenizer,
    check_types,
    check_weights,
    tensor_types,
)
from llmprobe.capture.gguf_files import count_gguf, gguf_values, quick_gguf
from llmprobe.capture.kinds import empty_model, loader
from llmprobe.capture.parts import Part, check_part, part_of, whole_of
from llmprobe.capture.quantizing import check_package, check_quantize, running_quantized
from llmprobe.capture.quantizing import quantize as quantize_model
from llmprobe.capture.refusals import (
    BUILTIN,
    Place,
    check_complete,
    check_local,
    check_size,
    explained,
    files_of,
)

_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""If unset, loading a pickle from the hub asks a bot, in a thread, to convert the repository."""
_SPARE_ROWS = 8
"""A table of positions may have a few more rows than positions: OPT and BART have two."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A language model in eval mode, without gradients, and what is known about it."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    """None if the folder has none: such a model can only be probed with random tokens."""
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
    """The longest prompt the model was trained for, from its config; None if it does not say."""
    learned_positions: int | None
    """The most tokens a prompt can have, from a learned table of positions; None without one."""
    layer_types: tuple[str, ...] | None
    """By layer, in transformers' words (full_attention, sliding_attention); None if undeclared."""
    vocab_size: int
    bos_token_id: int | None
    """From the tokenizer; without a tokenizer, from the config; as a GGUF file declares it."""
    adds_bos: bool
    """Whether every text begins with the BOS token, by the tokenizer or by a GGUF file."""

    quantized: str | None = None
    """int8, int4 or nf4 if the weights were quantized while loading."""
    part: str | None = None
    """Of an encoder-decoder: encoder, decoder or cross."""

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        tokenizer: Any = None,
        name: str | None = None,
        revision: str | None = None,
    ) -> "LoadedModel":
        """The facts of a model in memory; a custom module need not have a config."""
        model = part_of(model)
        config: Any = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        embedding = model.get_input_embeddings()
        weight = next(embedding.parameters())
        context_length = getattr(config, "max_position_embeddings", None)
        types = getattr(config, "layer_types", None)
        return cls(
            model=model,
            tokenizer=tokenizer,
            name=name or type(whole_of(model)).__name__,
            revision=revision,
            dtype=str(weight.dtype).removeprefix("torch."),
            device=weight.device.type,
            attention=str(getattr(config, "_attn_implementation", "own")),
            context_length=context_length,
            learned_positions=_learned_positions(model, context_length),
            layer_types=None if types is None else tuple(types),
            # Not the rows of the weight: a custom embedding may be no table.
            vocab_size=getattr(config, "vocab_size", None) or embedding.num_embeddings,
            part=getattr(model, "part", None),
            **_bos_facts(tokenizer, config, model),
        )

    def describe(self) -> dict[str, Any]:
        """The facts as plain values: everything except the model and the tokenizer."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("model", "tokenizer")]
        return {name: getattr(self, name) for name in names}


AnyModel: TypeAlias = str | os.PathLike[str] | nn.Module | LoadedModel
"""What public functions take: a name, a module, or a loaded model."""


def load_model(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    attn_implementation: str | None = None,
    quantize: str | None = None,
    part: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> LoadedModel:
    """Load a language model from the hub, a folder, a `.gguf` file, or the `builtin` one.

    Causal models and encoder-decoders come with their head, encoders (BERT) without.

    `name`: a path if it exists, begins with `.`, `/` or `~`, or ends in `.gguf`; a path never uses
    the network. Anything else is a hub id; `id@revision` chooses a branch, tag or commit.
    `dtype`: "auto", a name such as "float32" or "bf16", or a torch dtype. "auto" is bfloat16 on a
    GPU that supports it and float32 elsewhere, whatever type the weights are stored in.
    `device`: "auto" (the accelerator if there is one, else the CPU), "cpu", "cuda:1", "mps".
    `device_map`: accelerate's plan for several devices, used instead of `device`.
    `attn_implementation`: the attention backend ("sdpa", "eager", ...); None for the model's
    default.
    `quantize`: "int8", "int4" or "nf4" weights in the layers, through torchao; activations stay
    float.
    `part`: which attention of an encoder-decoder is looked at: "encoder" (its default), "decoder"
    or "cross". The model is then a `Part`, which takes the tokens of prompts.
    `allow_pickle`: read `.bin` weights, which can run code.
    `trust_remote_code`: run code that comes with the model.
    `weights`: False reads the config only. The model is on the meta device, with shapes and without
    numbers, and has no tokenizer.
    """
    if device_map is not None and device != "auto":
        raise ValueError(f"device: got {str(device)!r} and a device_map; give only one of them")
    check_map(device_map)
    target = resolve_device(device)
    number_type = resolve_dtype(dtype, target)
    place = _locate(name, revision)._replace(allow_pickle=allow_pickle)
    check_quantize(quantize)
    check_part(part)
    parsing = nullcontext() if place.gguf is None else quick_gguf()
    with explained(place, target), _quiet(), untracked(), parsing:
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
        check_package(quantize)
        n_tensors = _check_contents(place, folder, trust_remote_code)
        if not trust_remote_code:
            check_backend(attn_implementation, "in attn_implementation")
        check_kernel(attn_implementation, target)
        config = AutoConfig.from_pretrained(place.source, **options)
        check_layers("num_hidden_layers", _n_layers(config), n_tensors)
        auto, options_of_kind = loader(config)
        if device_map is None or not weights:
            model = empty_model(config, trust_remote_code)
        if device_map is None:
            check_size(model, number_type, target)
        if not weights:
            model = part_of(model.to(number_type), part)
            outline = LoadedModel.of(model, name=place.shown, revision=place.revision)
            return dataclasses.replace(outline, device=target.type)
        tokenizer = _load_tokenizer(place, config, options)
        if place.gguf is not None and hasattr(transformers, "GgufConfig"):
            # Otherwise some weights stay packed, and kernels for them are fetched from the hub.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        options |= options_of_kind
        with running_quantized(config):
            model, report = auto.from_pretrained(
                place.source,
                config=config,
                dtype=number_type,
                device_map={"": target} if device_map is None else device_map,
                attn_implementation=attn_implementation,
                use_safetensors=None if allow_pickle else True,
                # Weights of the wrong shape are reported, and refused below by name.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
        check_complete(report)
        if quantize is not None:
            quantize_model(model, quantize)
    model = part_of(model.eval().requires_grad_(False), part)
    loaded = LoadedModel.of(model, tokenizer=tokenizer, name=place.shown, revision=place.revision)
    loaded = dataclasses.replace(loaded, quantized=quantize)
    return loaded if place.gguf is None else _with_declared_bos(loaded, place.gguf)


def shown_name(name: str | os.PathLike[str]) -> str:
    """How results call a model: its hub id, or the last part of its path. Nothing is opened."""
    return _locate(name, None).shown


def as_loaded(
    model: AnyModel, *, tokenizer: Any = None, part: str | None = None, **load_options: Any
) -> LoadedModel:
    """A name, a module or a `LoadedModel` as a `LoadedModel`.

    `load_options` are the arguments of `load_model`. They are for a name only: with a model that is
    already loaded, any value other than the default is refused. A `tokenizer` replaces the model's,
    and `part` chooses an attention of an encoder-decoder.
    """
    if isinstance(model, str | os.PathLike):
        loaded = load_model(model, part=part, **load_options)
    else:
        _refuse_options(load_options)
        if isinstance(model, nn.Module):
            return LoadedModel.of(part_of(model, part), tokenizer=tokenizer)
        if not isinstance(model, LoadedModel):
            raise ValueError(
                f"model: got {type(model).__name__}, accepted: a name (hub id, folder, .gguf file, "
                '"builtin"), an nn.Module, or a LoadedModel'
            )
        loaded = _with_part(model, part)
    if tokenizer is None:
        return loaded
    bos = _bos_facts(tokenizer, None, loaded.model)
    return dataclasses.replace(loaded, tokenizer=tokenizer, **bos)


def _with_part(loaded: LoadedModel, part: str | None) -> LoadedModel:
    model = part_of(loaded.model, part)
    if model is loaded.model:
        return loaded
    bos = _bos_facts(loaded.tokenizer, model.config, model)
    return dataclasses.replace(loaded, model=model, part=part, **bos)


def module_of(model: AnyModel, part: str | None = None) -> nn.Module:
    """The module itself, or a part of it; a name is loaded with the defaults of `load_model`."""
    if isinstance(model, nn.Module):
        return part_of(model, part)
    module: nn.Module = as_loaded(model, part=part).model
    return module


def _refuse_options(options: Mapping[str, Any]) -> None:
    defaults = {p.name: p.default for p in inspect.signature(load_model).parameters.values()}
    given = [name for name, value in options.items() if defaults.get(name, ...) != value]
    if given:
        raise ValueError(
            f"{', '.join(given)}: the model is already loaded; give the model by name, or pass "
            f"{'this' if len(given) == 1 else 'these'} to load_model"
        )


def _bos_facts(tokenizer: Any, config: Any, model: Any) -> dict[str, Any]:
    if isinstance(model, Part) and model.part == "decoder":  # which always begins with it
        return {"bos_token_id": model.start_token_id, "adds_bos": True}
    bos = getattr(config if tokenizer is None else tokenizer, "bos_token_id", None)
    if bos is None:  # an encoder's first token is called otherwise
        bos = getattr(tokenizer, "cls_token_id", None)
    adds = tokenizer is not None and bos is not None and tokenizer("x")["input_ids"][:1] == [bos]
    return {"bos_token_id": bos, "adds_bos": adds}


def _with_declared_bos(loaded: LoadedModel, path: Path) -> LoadedModel:
    """BOS as a GGUF file declares it: the conversion of its tokenizer may lose that."""
    adds, bos = (f"tokenizer.ggml.{name}" for name in ("add_bos_token", "bos_token_id"))
    said = gguf_values(path, (adds, bos))
    if adds not in said:
        return loaded
    number = said.get(bos, loaded.bos_token_id)
    known = number is not None and number < loaded.vocab_size
    return dataclasses.replace(
        loaded,
        bos_token_id=number if known else loaded.bos_token_id,
        adds_bos=bool(said[adds]) and known,
    )


def _locate(name: str | os.PathLike[str], revision: str | None) -> Place:
    """Decide between a path and a hub id, without opening either."""
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
        raise ValueError(f"revision: got {revision!r} and {given!r}; give only one of them")
    return Place(repository, repository, given, local=False, revision=in_name or revision)


def _check_contents(place: Place, folder: Path, trust_remote_code: bool) -> int | None:
    """Refuse files that ask for code or for more than they have; gives the number of tensors."""
    if place.gguf is not None:
        return count_gguf(place.gguf)
    if place.local:
        names = files_of(place)
        for name in names:
            if name.endswith((".json", ".safetensors", ".bin", ".txt", ".model", ".jinja")):
                check_file(folder / name)
    else:
        names = list(_fetch(place, ("model.safetensors.index.json", "tokenizer.json", ADAPTER)))
        names += _fetch(place, (ADAPTER_WEIGHTS,)) if ADAPTER in names else ()
    weights = [folder / name for name in names if name.endswith(".safetensors")]
    types = tensor_types(weights) if weights else None
    n_tensors = None if types is None or place.allow_pickle else len(types)
    check_config(folder / "config.json", trust_remote_code=trust_remote_code, n_tensors=n_tensors)
    check_types(types or {}, folder / "config.json")
    check_weights(folder, names=names, allow_pickle=place.allow_pickle)
    check_tokenizer(folder / "tokenizer.json")
    return n_tensors


def _fetch(place: Place, names: Iterable[str]) -> Iterator[str]:
    """Files of a repository that are small and decide what else is read; not all have them."""
    for name in names:
        try:
            hf_hub_download(place.source, name, revision=place.revision)
        except (EntryNotFoundError, LocalEntryNotFoundError):
            continue
        yield name


def _n_layers(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    n_layers = getattr(text, "num_hidden_layers", 0)
    return n_layers if isinstance(n_layers, int) else 0


def _load_tokenizer(place: Place, config: Any, options: Mapping[str, Any]) -> Any:
    """The tokenizer, or None if there is none; one that cannot be read is an error."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.source, config=config, **options)
    except Exception as error:  # files of unknown origin can make transformers raise anything
        if place.gguf or any(name.startswith(("tokenizer", "vocab")) for name in files_of(place)):
            raise RuntimeError(f"its tokenizer: {error}") from error
        return None
    # Without files, transformers invents a tokenizer that knows only its special tokens.
    known = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    return tokenizer if known else None


def _learned_positions(model: Any, positions: int | None) -> int | None:
    """Found as an embedding outside the layers, not of tokens, with about one row per position."""
    if positions is None:
        return None
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
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
    """Silence the libraries that load, bars on a terminal only; settings are restored after."""
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, conversion = [x.level for x in loggers], os.environ.pop(_NO_CONVERSION, None)
    set_hook: Callable[..., Any] = getattr(transformers.logging, "set_tqdm_hook", lambda _: None)
    hook = set_hook(lambda make, args, options: make(*args, **{**options, "disable": None}))
    bar = gguf_loader.tqdm  # GGUF files have their own bar, which no setting turns off
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
