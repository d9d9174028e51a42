"""Damaged files of every kind that a command reads, and what the line must say of each."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bad_options import PROBE, RIGHT, TRAIN, Case
from safetensors.torch import save


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
    "an unknown kind": (change("run/result.json", kind="pie"), "known: "),
    "no fields": (change("run/result.json", fields={}), "lacks provenance"),
    "other arrays": (change("run/result.json", arrays={}), "lacks layer, head"),
    "no arrays": (gone("run/arrays.npz"), "copy the whole folder again"),
    "empty arrays": (put("run/arrays.npz", ""), "cannot be read"),
    "half the arrays": (cut("run/arrays.npz", 1000), "cannot be read"),
}
OF_A_TEXT: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty; give a file with text"),
    "blanks": (b" \n\t\n", "is empty; give a file with text"),
    "Latin-1": ("Ärger im Meer. ".encode("latin-1") * 99, "is not UTF-8"),
    "UTF-16": (("Some words. " * 99).encode("utf-16"), "is not a text"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(range(256)), "is not a text"),
    "NUL bytes": (bytes(5000), "is not a text"),
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
    "an encoder": (change("model/config.json", model_type="bert"), "lacks weights that fit"),
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
    "a list": (b"[]", "use another output folder"),
    "another's": (b'{"format": 3}', "use another output folder"),
    "no settings": (b'{"format": "llmprobe probe"}', "use another output folder"),
}
OF_A_CHECKPOINT: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"garbage" * 99,
    "no facts": save({"a": torch.zeros(1)}),
}


def bad_files() -> Iterator[tuple[str, Case]]:
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
        more = (*probe, "--output", "{}/run", "--n-prompts", "6")
        for wrong in (more, ("merge", "{}/run", "{}/other", "--output", "{}/out")):
            spoil = put("run/evidence.safetensors", content)
            yield f"{wrong[0]} evidence: {what}", Case(wrong, "evidence.safetensors", spoil)
