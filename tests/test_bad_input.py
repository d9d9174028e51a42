"""Bad input to every option, argument, file and variable: one line that says what to do, no more.

Cases are made from the commands' own signatures, with values that are bad by type, and with tables
of those that are bad by what they mean. `{}` stands for a folder with things to give wrongly.
"""

import inspect
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

import pytest
import torch
from conftest import ROOT
from safetensors.torch import save

from llmprobe import load_model, probe_attention, probe_variance, train_synthetic, units
from llmprobe.cli import app


class Case(NamedTuple):
    """A command that must be refused."""

    arguments: tuple[str, ...]
    words: str
    """What the line must say."""
    spoil: Callable[[Path], object] = lambda folder: None
    """Done to the folder before."""
    came: str = ""
    """What came, as the line shows it."""


BUILTIN = ROOT / "llmprobe" / "builtin"
HUGE = str(10**30)
PROBE = ("--samples", "4", "--lengths", "8,16", "--output", "{}/out", "--quiet")
TRAIN = ("--steps", "4", "--sets", "4", "--lengths", "8", "--batch", "4", "--quiet")
# Arguments, and options beside them, with which a command is right and soon done.
RIGHT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "variance": (("builtin",), PROBE),
    "attention": (("builtin",), PROBE),
    "check": (("builtin",), ("--length", "8")),
    "train-synthetic": ((), (*TRAIN, "--output", "{}/out")),
    "plot": (("{}/run",), ()),
    "compare": (("{}/run", "{}/other"), ("--output", "{}/both.png")),
    "merge": (("{}/run", "{}/other"), ("--output", "{}/out")),
    "ls": (("tasks",), ()),
    "env": ((), ()),
}
COMPLEMENT = ("--task", "set-complement")
# Options without which another one would be refused for being there at all.
BESIDE = {
    "text": ("--prompts", "text"),
    "dataset": ("--prompts", "text"),
    "search": COMPLEMENT,
    "vocab": COMPLEMENT,
    "target": COMPLEMENT,
    "train-synthetic layers": COMPLEMENT,
    "value-size": COMPLEMENT,
    "dropout": ("--variants", "dropout"),
    "ema-decay": ("--variants", "ema"),
}
# What is bad whatever it is for, and what the line says beside what came.
BAD_BY_TYPE: dict[type, dict[str, str]] = {
    int: {"many": "valid integer", "1.5": "valid integer", "": "valid integer", "-1": "", HUGE: ""},
    float: {"wide": "valid number", "": "valid number", "nan": "", "-1": "", "inf": ""},
    str: {"": "", "no such": "", "\0": "", "☃ é": ""},
    Path: {"": "a path", "\0": "a path", "x" * 300: "too long", "~no-such-user/x": "no such user"},
}
LENGTHS = {
    "64..16": "must rise",
    "16..": "is not understood",
    "..16": "is not understood",
    "0": "the least is 1",
    "0,16": "the least is 1",
    "-5": "is not understood",
    "8,8": "8 more than once",
    "8;16": "is not understood",
    "1e3": "is not understood",
    "8..16:1": "accepted: 2 to 9",
    "1..1000000:900000": "accepted: 2 to 65536",
    HUGE: "the longest is 134,217,728",
    f"16..{HUGE}": "the longest is 134,217,728",
    "9" * 5000: "a number of 5000 digits",
}
FOLDER = {
    "{}/nowhere": "does not exist; check the path",
    "{}/empty": "has no result.json",
    "{}/file": "is a file; give the folder",
    "{}/run/result.json": "is a file; give the folder",
}
# Of an option, or of one command's, the values that only its meaning makes bad.
BAD_BY_NAME: dict[str, dict[str, str]] = {
    "model": {
        "./no-such-folder": "does not exist",
        "some/model": "HF_HUB_OFFLINE is set",
        "a/b/c": "cannot be a hub id",
        "https://huggingface.co/a/b": "cannot be a hub id",
        "two words": "cannot be a hub id",
        "two\nlines": r"'two\nlines'",
        "builtin@main": "is local; leave it out",
        "~no-such-user/model": "no such user",
        "x" * 300: "File name too long",
        "{}/empty": "is an empty folder",
        "{}/file": "no .gguf; give the folder",
        "/dev/null": "no .gguf; give the folder",
        "{}/run": "is a result, not a model",
        "{}/nowhere.gguf": "does not exist",
    },
    "lengths": LENGTHS,
    "train-lengths": {
        "16..5": "5..16",
        "5..": "5..16",
        "5,16": "5..16",
        "0": "from 1",
        "-3": "from 1",
        HUGE: "to 134,217,728",
        "9" * 5000: "to 134,217,728",
    },
    "length": {"7": "8 or more", "100000": "to 65,536"},
    "layers": {
        "99": "there are 0 to 4",
        "-9": "there are 0 to 4",
        "first": "accepted: all, 0, -1",
        "4..2": "runs backwards",
        "0..": "accepted: all, 0, -1",
        "0..999999999": "5 digits at most",
        "9" * 5000: "5 digits at most",
    },
    "at": {"middle": "output, heads"},
    "prompts": {"poems": "random, unigram", "text": "needs --text FILE", "unigram": "needs --text"},
    "text": {
        "{}/nowhere.txt": "does not exist; check the path",
        "{}/empty": "is a folder; give a file",
        "/dev/zero": "is a device",
    },
    "dataset": {
        "{}/nowhere.jsonl": "does not exist; check the path",
        "{}/empty": "cannot be read",
        "{}/file": "try --text",
        "a/b/c": "NAME:SPLIT",
        "json": "NAME:SPLIT",
        "some/data:test": "the hub is not reachable",
        "~no-such-user/x": "no such user",
        "x" * 300: "File name too long",
    },
    "samples": {"0": "2 or more", "1": "2 or more", "1000001": "to 1,000,000"},
    "query": {"both": "free, fixed"},
    "bos": {"maybe": "auto, yes, no"},
    "component": {"192": "0 to 191"},
    "reference": {"17": "(8, 16)"},
    "seed": {str(2**63): "less than 64 bits"},
    "device": {
        "gpu": "auto, cpu",
        "xpu": "auto, cpu",
        "meta": "auto, cpu",
        "CPU": "auto, cpu",
        "cpu:1": "use cpu",
        "cuda:99": "torch sees",
    },
    "device-map": {
        "disk": "balanced, ",
        "meta": "balanced, ",
        "Auto": "balanced, ",
        "cpu:7": "cpu",
    },
    "dtype": {"int8": "float32, bfloat16", "torch.float32": "float32, bfloat16"},
    "revision": {"main": "is local; leave it out"},
    "batch-tokens": {"0": "1 or more"},
    "chunk": {"0": "1 or more"},
    "task": {"sorting": "argmax, dictionary", "../up": "argmax, dictionary"},
    "variants": {
        "baseline,groupnorm": "layernorm, standardize",
        "layernorm+rmsnorm": "choose one",
        "baseline,baseline": "different",
        "baseline+baseline,baseline": "different",
        ",": "accepted",
        "mlp": "layernorm, standardize",
    },
    "preset": {"huge": "quick, desk, paper"},
    "search": {"0": "search: got 0, accepted: 1 or more"},
    "seeds": {"0": "1 or more", "1000000000": "1 or more, to 1,000,000"},
    "first-seed": {"-1": "0 or more", str(2**63 - 1): "less than 64 bits"},
    "steps": {"0": "1 or more"},
    "sets": {"0": "1 or more"},
    "vocab": {"1": "2 to 1024 tokens", "1000000": "2 to 1024 tokens"},
    "target": {"soft": "sampled, exact"},
    "width": {"0": "1 "},
    "heads": {"0": "1 or more", "3": "divisor"},
    "train-synthetic layers": {"0": "1 or more", "1001": "to 1,000"},
    "value-size": {"0": "1 or more", "1000000": "to 65,536"},
    "batch": {"0": "1 or more", "1000000": "to 65,536"},
    "learning-rate": {"nan": "0 or more", "1e400": "0 or more"},
    "weight-decay": {"nan": "0 or more", "1e400": "0 or more"},
    "clip": {"-1": "0 or more", "1e400": "0 or more"},
    "schedule": {"linear": "constant, cosine"},
    "warmup": {"100": "0 to the 4 steps"},
    "dropout": {"1": "less than 1", "0": "more than 0"},
    "ema-decay": {"1": "less than 1"},
    "output": {
        "{}/here": "use another --output",
        "{}/file": "is a file",
        "{}/file/run": "cannot be written",
        "/proc/run": "cannot be written",
    },
    "plot output": {
        "x.gif": "a name such as figure.png",
        ".png": "a name such as figure.png",
        "{}/file/x.png": "cannot be written",
        "/proc/x.png": "cannot be written",
        "{}/folder.png": "cannot be used",
    },
    "compare output": {
        "x.gif": ".png, .pdf or .svg",
        "{}/run": ".png, .pdf or .svg",
        "{}/file/x.png": "cannot be written",
        "/proc/x.png": "cannot be written",
        "{}/folder.png": "cannot be used",
    },
    "merge output": {
        "{}/run": "is already there",
        "{}/empty": "is already there",
        "{}/file/x": "cannot be written",
        "/proc/x": "cannot be written",
    },
    "folder": FOLDER,
    "folders": FOLDER | {"{}/lab": "synthetic", "{}/attention": "attention"},
    "kind": {"pie": "decay, heads", "../../x": "decay, heads", "accuracy": "decay, heads"},
    "format": {"gif": "png, pdf, svg", "PNG": "png, pdf, svg"},
    "plot width": {"0": "1 to 40 inches", "1e9": "1 to 40 inches"},
    "what": {"models": "tasks, variants, prompts, kinds", "TASKS": "tasks, variants"},
}
# What is bad only together, or is no option at all: commands with what the line says.
TOGETHER: dict[str, list[tuple[str, str]]] = {
    "variance": [
        ("--prompts text --text a --dataset b", "give only one of them"),
        ("--text {}/short.txt", "use --prompts text or unigram"),
        ("--prompts text --text {}/short.txt", "use a longer text"),
        ("--prompts text --text {}/same.txt", "are the same"),
        ("--prompts dictionary --query fixed", "use free"),
        ("--prompts dictionary --lengths 2", "the least length"),
        ("--device cpu --device-map auto", "give only one of them"),
        ("--at heads --component 32", "0 to 31"),
        ("--sample 3", "--samples"),
        ("another", "unexpected extra argument"),
        ("--lengths --samples 4", "unexpected extra argument"),
        ("--output {}/run --seed 1", "seed 0 (asked: 1)"),
        ("--output {}/run --samples 3", "more than the 3 that are asked for"),
        ("--output {}/lab", "is already there"),
        ("--output {}/here --overwrite", "is no result"),
        ("--output {}/link", "is a link"),
    ],
    "attention": [("--at heads", "No such option"), ("--chunk 8", "No such option")],
    "check": [("--length 8 another", "unexpected extra argument")],
    "train-synthetic": [
        ("argmax", "unexpected extra argument"),
        ("--search 8", "set-complement, othello"),
        ("--layers 2", "not for argmax"),
        ("--vocab 8", "not for argmax"),
        ("--target exact", "not for argmax"),
        ("--value-size 8", "not for argmax"),
        ("--dropout 0.1", "no variant has dropout"),
        ("--ema-decay 0.9", "no variant has ema"),
        ("--task dictionary --lengths 16777216", "8,388,608 items"),
        ("--task dictionary --train-lengths 16777216", "train_lengths: got 16777216"),
        ("--task set-complement --vocab 8 --lengths 8", "1 to 7 tokens"),
        ("--task set-complement --vocab 8 --train-lengths 1..8", "1 to 7 tokens"),
        ("--task set-complement --variants layernorm", "mlp, prenorm"),
        ("--task set-complement --variants rotary --width 7", "an even size"),
        ("--task set-complement --search 4 --width 8", "drawn by the search"),
        ("--task set-complement --search 4 --seeds 2", "drawn by the search"),
        ("--task set-complement --search 4 --variants baseline,mlp", "one network"),
        ("--task set-complement --search 4 --variants dropout", "one network"),
        ("--task othello --vocab 8", "tokens of othello"),
        ("--task othello --lengths 60", "1 to 59 tokens"),
        ("--output {}/lab --learning-rate 0.01", "learning_rate 0.001 (asked: 0.01)"),
        ("--output {}/run", "holds no training"),
        ("--output {}/here --overwrite", "holds no training"),
    ],
    "plot": [
        ("{}/other", "unexpected extra argument"),
        ("--output x.pdf", "another --format"),
        ("--kind decay --format pdf --output x.png", "another --format"),
    ],
    "compare": [("{}/run", "same folder twice"), ("{}/./run", "same folder twice")],
    "merge": [
        ("{}/run", "two or more different"),
        ("{}/lab", "results of one kind"),
        ("{}/same", "seed 0 at length 8 is in two folders"),
        ("{}/bare", "has no evidence.safetensors"),
        ("--output {}/empty --overwrite", "is no result"),
    ],
    "ls": [("kinds", "unexpected extra argument")],
    "env": [("--json now", "unexpected extra argument"), ("--debug", "No such option")],
}
USAGE = {
    "varience": "Did you mean 'variance'?",
    "nope": "No such command",
    "-x": "No such option",
    "--nope": "No such option",
    "--json env": "No such option",
    "--debug=3 env": "does not take a value",
    "--version=3": "does not take a value",
    "plot": "Missing argument",
    "compare": "Missing argument",
    "merge": "Missing argument",
    "merge {}/run {}/other": "Missing option '--output'",
    "ls": "Missing argument",
}

COMMANDS = {
    command.name or command.callback.__name__.replace("_", "-"): command.callback
    for command in app.registered_commands
}


def options_of(command: str) -> dict[str, tuple[type, bool]]:
    """The names of a command's options and arguments, each with its type and whether it is one."""
    found = {}
    for name, parameter in inspect.signature(COMMANDS[command]).parameters.items():
        kind, about = get_args(parameter.annotation)
        if isinstance(kind, UnionType):
            (kind,) = {*get_args(kind)} - {NoneType}
        if get_origin(kind) is list:
            (kind,) = get_args(kind)
        is_option = type(about).__name__ == "OptionInfo"
        # Beside Annotated, what typer takes for a default is the first name.
        declared = [about.default, *(about.param_decls or ())]
        names = [text for text in declared if isinstance(text, str)] or [name.replace("_", "-")]
        found[names[0].removeprefix("--")] = kind, is_option
    return found


def filled(command: str, option: str, value: str | None, is_option: bool) -> tuple[str, ...]:
    """A command that is right but for one value; None is an option that is left without."""
    arguments, options = RIGHT[command]
    options += BESIDE.get(f"{command} {option}", BESIDE.get(option, ()))
    if not is_option:
        assert value is not None
        return (command, *options, "--", value, *arguments[1:])
    return (command, *arguments, *options, f"--{option}", *([] if value is None else [value]))


def told(value: str) -> str:
    """How a line shows what came."""
    return "''" if not value else repr(value)[1:-1]


def cases() -> Iterator[tuple[str, Case]]:
    """All of them, by names that say what is wrong."""
    for command in COMMANDS:
        arguments, options = RIGHT[command]
        for option, (kind, is_option) in options_of(command).items():
            if kind is bool:
                wrong = (command, *arguments, *options, f"--{option}=3")
                yield f"{command} --{option}=3", Case(wrong, "does not take a value")
                continue
            if is_option:
                wrong = filled(command, option, None, is_option)
                yield f"{command} --{option} alone", Case(wrong, "requires an argument")
            meant = BAD_BY_NAME.get(f"{command} {option}", BAD_BY_NAME.get(option, {}))
            for value, words in (BAD_BY_TYPE[kind] | meant).items():
                wrong = filled(command, option, value, is_option)
                came = "" if value in meant else told(value)
                yield f"{command} {option} {ascii(value)[:40]}", Case(wrong, words, came=came)
        for more, words in TOGETHER[command]:
            wrong = (command, *arguments, *options, *more.split())
            yield f"{command} {more}", Case(wrong, words)
    for line, words in USAGE.items():
        yield f"usage {line}", Case(tuple(line.split()), words)
    yield from spoiled()


def put(name: str, content: bytes | str) -> Callable[[Path], object]:
    """Have the folder a file of this content, or damage the one that is there."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def change(name: str, **facts: Any) -> Callable[[Path], object]:
    """Have a JSON file of the folder say something else."""

    def write(folder: Path) -> None:
        there = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(there | facts))

    return write


def cut(name: str, n_bytes: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, n_bytes)


def gone(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


OF_A_RESULT: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty document": (put("run/result.json", ""), "is not a readable result"),
    "half a document": (cut("run/result.json", 100), "is not a readable result"),
    "no JSON": (put("run/result.json", b"\xff\xfe\0"), "is not a readable result"),
    "a deep document": (put("run/result.json", "[" * 100_000), "is not a readable result"),
    "another's document": (put("run/result.json", '{"a": 1}'), "was not written by llmprobe"),
    "a list": (put("run/result.json", "[]"), "was not written by llmprobe"),
    "a newer schema": (change("run/result.json", schema=2), "upgrade llmprobe"),
    "an unknown kind": (change("run/result.json", kind="pie"), "known: variance"),
    "no fields": (change("run/result.json", fields={}), "is not a readable result"),
    "other arrays": (change("run/result.json", arrays={}), "holds other arrays"),
    "no arrays": (gone("run/arrays.npz"), "copy the whole folder again"),
    "empty arrays": (put("run/arrays.npz", ""), "cannot be read"),
    "half the arrays": (cut("run/arrays.npz", 1000), "cannot be read"),
}
OF_A_TEXT: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty; give a file with text"),
    "blanks": (b" \n\t\n", "is empty; give a file with text"),
    "Latin-1": ("Ärger im Meer. ".encode("latin-1") * 99, "is not UTF-8"),
    "UTF-16": (("Some words. " * 99).encode("utf-16"), "is not UTF-8"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(range(256)), "is not UTF-8"),
    "NUL bytes": (bytes(5000), "are the same"),
    "one word": (b"word " * 3000, "are the same"),
}
OF_A_DATASET: dict[str, tuple[str, bytes, str]] = {
    "an empty text": ("x.txt", b"", "is empty"),
    "an empty list": ("x.json", b"", "is empty"),
    "an empty table": ("x.csv", b"", "is empty"),
    "a head alone": ("x.csv", b"text\n", "is empty in its split train"),
    "half a row": ("x.jsonl", b'{"text": ', "cannot be read"),
    "half a table": ("x.csv", b'a,text\n"b', "cannot be read"),
    "no parquet": ("x.parquet", b"PAR1 and more", "cannot be read"),
    "numbers": ("x.jsonl", b'{"a": 1}\n{"a": 2}', "has no column of text: a"),
    "no text": ("x.jsonl", b'{"text": null}', "has no column of text: text"),
    "a number among texts": ("x.jsonl", b'{"text": 1}\n{"text": "a"}', "has 1 among the texts"),
    "another format": ("x.zip", b"PK", "is none of .txt"),
    "too little": ("x.txt", b"a few words\n", "use a longer text"),
}
OF_A_MODEL: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (gone("model/config.json"), "has no config.json"),
    "an empty config": (put("model/config.json", ""), "check its files"),
    "a config of nothing": (put("model/config.json", "null"), "check its files"),
    "a deep config": (put("model/config.json", "[" * 100_000), "check its files"),
    "no type": (put("model/config.json", "{}"), "model_type"),
    "an unknown type": (change("model/config.json", model_type="nope"), "nope"),
    "an encoder": (change("model/config.json", model_type="bert"), "needs a causal language model"),
    "width 0": (change("model/config.json", hidden_size=0), "lacks weights that fit"),
    "width in words": (change("model/config.json", hidden_size="wide"), "expected int"),
    "another width": (change("model/config.json", hidden_size=96), "lacks weights that fit"),
    "no heads": (change("model/config.json", num_attention_heads=0), "check its files"),
    "no layers": (change("model/config.json", num_hidden_layers=0), "has no attention"),
    "too many layers": (change("model/config.json", num_hidden_layers=7), "lacks weights that fit"),
    "a few tokens": (change("model/config.json", vocab_size=3), "lacks weights that fit"),
    "no weights": (gone("model/model.safetensors"), "has a config.json but no weights"),
    "empty weights": (put("model/model.safetensors", ""), "get them again"),
    "half the weights": (cut("model/model.safetensors", 5000), "get them again"),
    "other weights": (
        put("model/model.safetensors", save({"a": torch.zeros(1)}, {"format": "pt"})),
        "lacks weights that fit",
    ),
    "an empty tokenizer": (put("model/tokenizer.json", ""), "its tokenizer"),
    "a broken tokenizer": (put("model/tokenizer.json", "{nonsense"), "its tokenizer"),
}
OF_A_GGUF: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is no GGUF file"),
    "another file": (b"PK\3\4" * 9, "is no GGUF file"),
    "its name alone": (b"GGUF", "is damaged"),
    "a head of ones": (b"GGUF" + b"\xff" * 60, "is damaged"),
    "no facts": (b"GGUF\3\0\0\0" + struct.pack("<QQ", 0, 0), "is damaged"),
    "endless facts": (b"GGUF\3\0\0\0" + struct.pack("<QQ", 2**60, 2**60), "is damaged"),
}
OF_A_CONFIGURATION: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cannot be read"),
    "half": (b'{"format": ', "cannot be read"),
    "no UTF-8": (b"\xff", "cannot be read"),
    "a list": (b"[]", "use another --output"),
    "another's": (b'{"format": 3}', "use another --output"),
    "no settings": (b'{"format": "llmprobe probe"}', "use another --output"),
}
OF_A_CHECKPOINT: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"garbage" * 99,
    "no facts": save({"a": torch.zeros(1)}),
}


def spoiled() -> Iterator[tuple[str, Case]]:
    """Commands that are right, on files that are not."""
    probe = ("variance", *PROBE)
    train = ("train-synthetic", *TRAIN)
    for what, (spoil, words) in OF_A_RESULT.items():
        for command in ("plot", "compare", "merge"):
            arguments, options = RIGHT[command]
            wrong = (command, *arguments, *options)
            yield f"{command}: {what}", Case(wrong, words, spoil)
    for what, (content, words) in OF_A_TEXT.items():
        wrong = (*probe, "--prompts", "text", "--text", "{}/x.txt")
        yield f"text: {what}", Case(wrong, words, put("x.txt", content))
    for what, (name, content, words) in OF_A_DATASET.items():
        wrong = (*probe, "--prompts", "text", "--dataset", f"{{}}/{name}")
        yield f"data set: {what}", Case(wrong, words, put(name, content))
    for what, (spoil, words) in OF_A_MODEL.items():
        for command in ("variance", "check"):
            wrong = (command, "{}/model", *RIGHT[command][1])
            yield f"{command}: {what}", Case(wrong, words, spoil)
    for what, (content, words) in OF_A_GGUF.items():
        wrong = ("check", "{}/x.gguf")
        yield f"GGUF: {what}", Case(wrong, words, put("x.gguf", content))
    for what, (content, words) in OF_A_CONFIGURATION.items():
        for command, folder in ((probe, "begun"), (train, "half")):
            wrong = (*command, "--output", f"{{}}/{folder}")
            spoil = put(f"{folder}/configuration.json", content)
            yield f"{command[0]} configuration: {what}", Case(wrong, words, spoil)
    again, wrong = "remove it to have", (*train, "--output", "{}/half")
    for name, facts in (("0-7", {}), ("baseline.0-7.measured", {"lengths": [8], "sets": 4})):
        other = save({"a": torch.zeros(1)}, {"llmprobe": json.dumps(facts)})
        spoil = put(f"half/checkpoints/baseline.{name}.safetensors", other)
        yield f"checkpoint: other tensors for {name}", Case(wrong, again, spoil)
    for what, content in OF_A_CHECKPOINT.items():
        for command, path in (
            (train, "half/checkpoints/baseline.0-7.safetensors"),
            (train, "half/checkpoints/baseline.baseline.0-7.measured.safetensors"),
            (probe, "begun/checkpoints/8-16.0.safetensors"),
        ):
            wrong = (*command, "--output", "{}/" + path.split("/")[0])
            yield f"{path}: {what}", Case(wrong, again, put(path, content))
        more = (*probe, "--output", "{}/run", "--samples", "6")
        for wrong in (more, ("merge", "{}/run", "{}/other", "--output", "{}/out")):
            spoil = put("run/evidence.safetensors", content)
            yield f"{wrong[0]} evidence: {what}", Case(wrong, "evidence.safetensors", spoil)


CASES = dict(cases())
WHAT_TO_DO = re.compile(r"accepted|--help shows|needs --|; \w+")
UNFORESEEN = re.compile(r"Traceback|--debug shows|invalid literal|\[Errno|object (is|has)|\x1b")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Results, texts and a model to give wrongly; tests have a copy of their own."""
    folder = tmp_path_factory.mktemp("stock")
    loaded, common = load_model("builtin"), {"samples": 4, "layers": [0]}
    for name, seed in (("run", 0), ("other", 1)):
        probe_variance(loaded, "8,16", seed=seed, output=folder / name, **common)
    probe_attention(loaded, "8,16", output=folder / "attention", **common)
    training = {"steps": 4, "sets": 4, "lengths": "8", "batch": 4}
    train_synthetic(output=folder / "lab", **training)
    shutil.copytree(folder / "lab", folder / "half")
    for name in ("result.json", "arrays.npz", "synthetic.png", "synthetic.pdf"):
        (folder / "half" / name).unlink()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(units, "summarize", _stop)
        probe_variance(loaded, "8,16", output=folder / "begun", **common)
    shutil.copytree(folder / "run", folder / "same")
    shutil.copytree(folder / "run", folder / "bare")
    (folder / "bare" / "evidence.safetensors").unlink()
    shutil.copytree(BUILTIN, folder / "model")
    for name in ("empty", "here", "folder.png"):
        (folder / name).mkdir()
    (folder / "here" / "thesis.txt").write_text("mine")
    (folder / "file").write_text("")
    (folder / "short.txt").write_text("Only a few words.")
    (folder / "same.txt").write_text("a" * 5000)
    (folder / "long.txt").write_text("A text of a few words, and of a few more. " * 99)
    (folder / "link").symlink_to("empty")
    return folder


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def lay(stock, tmp_path, monkeypatch):
    """Lays out what a command names in a folder to work in; gives the folder and the command."""
    folder = tmp_path / "places"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def named(arguments: Iterable[str]) -> tuple[Path, list[str]]:
        words = [argument.replace("{}", str(folder)) for argument in arguments]
        for path in stock.iterdir():
            if any(word.startswith(str(folder / path.name)) for word in words):
                whole = path.is_dir() and not path.is_symlink()
                copy = shutil.copytree if whole else partial(shutil.copyfile, follow_symlinks=False)
                copy(path, folder / path.name)
        return folder, words

    return named


def state(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def check_refused(code: int, out: str, err: str, words: str) -> None:
    assert code in (1, 2), (out, err)
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("llmprobe: ")
    assert words in err
    assert WHAT_TO_DO.search(err), err
    assert not UNFORESEEN.search(err), err


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(call, lay, name):
    case = CASES[name]
    folder, words = lay(case.arguments)
    case.spoil(folder)
    before = state(folder)
    code, out, err = call(*words)
    check_refused(code, out, err, case.words)
    assert case.came in err
    assert state(folder) == before


GOES_ON = {
    "probe": ("variance", *PROBE, "--output", "{}/begun"),
    "training": ("train-synthetic", *TRAIN, "--output", "{}/half"),
    "more prompts": ("variance", *PROBE, "--output", "{}/run", "--samples", "6"),
    "model": ("check", "{}/model"),
}


@pytest.mark.parametrize(
    "right",
    [*((command, *sum(RIGHT[command], ())) for command in COMMANDS), *GOES_ON.values()],
    ids=[*COMMANDS, *GOES_ON],
)
def test_what_the_cases_spoil_is_right_before(call, lay, right):
    code, out, err = call(*lay(right)[1])
    assert (code, err) == (0, "")
    assert out


def test_every_option_of_every_command_is_given_wrongly():
    assert RIGHT.keys() == TOGETHER.keys() == COMMANDS.keys()
    for command in COMMANDS:
        for option, (kind, is_option) in options_of(command).items():
            known = {option, f"{command} {option}"} & BAD_BY_NAME.keys()
            assert kind is bool or known, f"{command} {option}: what is bad by its meaning?"
            named = (
                f"{command} --{option}" if is_option and kind is bool else f"{command} {option} "
            )
            assert any(name.startswith(named) for name in CASES), named


def test_there_are_many_cases_and_no_two_of_one_name():
    assert len(CASES) == len(list(cases()))
    assert len(CASES) >= 170


LAUNCHED = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE: got 'abc', accepted: 1 to"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE: got ''"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE: got '0'"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE: got '-2'"),
    ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: got '999"),
    ({"WORLD_SIZE": "2"}, "RANK: got nothing, accepted: 0 to 1; start with torchrun"),
    ({"WORLD_SIZE": "2", "RANK": "abc"}, "RANK: got 'abc'"),
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK: got '2', accepted: 0 to 1"),
    ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"}, "LOCAL_RANK: got '-1'"),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "65536"}, "MASTER_PORT: got '65536'"),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "no host"}, "MASTER_ADDR: got 'no host'"),
]


@pytest.mark.parametrize("command", ["variance", "train-synthetic"])
@pytest.mark.parametrize(("variables", "words"), LAUNCHED)
def test_what_no_launcher_leaves_behind_is_one_line(
    call, lay, monkeypatch, variables, words, command
):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder, right = lay((command, *sum(RIGHT[command], ())))
    check_refused(*call(*right), words)
    assert not any(folder.iterdir())


TEXT = ("variance", *PROBE, "--prompts", "text", "--dataset", "{}/long.txt")
# Libraries read these when they are imported, so each takes an interpreter of its own.
VARIABLES = {
    "MPLBACKEND": ("nonsense", ("plot", "{}/run"), "MPLBACKEND: got 'nonsense'; unset it"),
    "HF_HOME": (os.devnull, TEXT, "check its files and the cache (HF_HOME)"),
    "HF_HUB_DOWNLOAD_TIMEOUT": ("soon", ("check",), "'soon' (in huggingface_hub.constants"),
    "TORCH_LOGS": ("nonsense", ("train-synthetic", *TRAIN), "nonsense"),
}
HARMLESS = {"COLUMNS": "wide", "TMPDIR": "nowhere", "HOME": "nowhere", "PYTHONIOENCODING": "ascii"}


def run(words: Iterable[str], variables: Mapping[str, str]) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "llmprobe", *words]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_a_library_refuses_is_one_line(lay, name):
    value, arguments, words = VARIABLES[name]
    folder, right = lay(arguments)
    before = state(folder)
    code, out, err = run(right, {name: value})
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("llmprobe: ")
    assert words in err
    assert state(folder) == before


def test_variables_that_matter_to_nobody_are_let_be(lay):
    folder, _ = lay(("{}/run", "{}/other"))
    (folder / "other").rename(folder / "é")
    code, out, err = run(("compare", "run", "é"), HARMLESS)
    assert (code, err) == (0, "")
    assert r"\xe9" in out
