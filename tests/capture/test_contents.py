"""A stranger's model folder runs no code and ends in one line, within seconds."""

import base64
import json
import os
import resource
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest
import torch
from attack import Forked
from safetensors.torch import load_file, save_file
from saved_models import refusal

from llmprobe.capture.contents import check_layers
from llmprobe.capture.loading import load_model
from llmprobe.capture.refusals import Refusal


@pytest.fixture(autouse=True)
def within_seconds():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 20


def change(folder, **facts):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


@pytest.fixture
def no_kernel(monkeypatch):
    """Fails the test if transformers gets as far as fetching a kernel."""

    def fetch(*_, **__):
        pytest.fail("a kernel was fetched")

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetch)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("name", ["someone/kernel", "someone/kernel@v1:f", "nonsense", 3])
@pytest.mark.parametrize("inside", [None, "text_config", "deeper"])
def test_a_config_cannot_choose_code_from_the_hub(llama, no_kernel, key, name, inside):
    fact = {key: name}
    deep = {"vision_config": [{"x": fact}]}
    change(llama, **(fact if inside is None else deep if inside == "deeper" else {inside: fact}))
    assert "trust_remote_code=True" in refusal(llama)


@pytest.mark.parametrize("name", ["someone/kernel", "paged|someone/kernel", {"": "a/b"}])
def test_nor_does_the_argument_without_trust(llama, no_kernel, name):
    assert "trust_remote_code=True" in refusal(llama, attn_implementation=name)


@pytest.mark.parametrize("name", ["sdpa", "eager", None])
def test_known_backends_are_accepted(llama, name):
    change(llama, attn_implementation=name)
    assert load_model(llama).attention in ("sdpa", "eager")


def index(folder, file):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, file)})
    )
    return weights


@pytest.mark.parametrize(
    "file", ["weights.bin", "weights.pt", "weights.pkl", "weights", "w.SAFETENSORS"]
)
def test_an_index_of_safetensors_names_no_pickle(llama, file):
    weights = index(llama, file)
    (llama / "model.safetensors").unlink()
    torch.save(weights, llama / file)
    save_file({"a": torch.zeros(1)}, llama / "other.safetensors")
    assert "allow_pickle=True" in refusal(llama)
    load_model(llama, allow_pickle=True)


@pytest.mark.parametrize("start", ["../other/", "/", "sub/", "..\\"])
def test_an_index_names_no_other_folder(llama, start):
    index(llama, f"{start}model.safetensors")
    for options in ({}, {"allow_pickle": True}):
        assert "another folder" in refusal(llama, **options)


def with_adapter(folder, base):
    """Put an adapter into a folder; gives its weights."""
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(load_model(base).model, peft.LoraConfig(init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)
    return folder / "adapter_model.safetensors"


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_an_adapter_is_no_pickle_unless_allowed(llama, cache, place):
    name, folder = (llama, llama) if place == "folder" else ("one/llama", cache)
    weights = with_adapter(folder, llama)
    assert load_model(name).model.peft_config
    torch.save(load_file(weights), folder / "adapter_model.bin")
    assert load_model(name).model.peft_config
    weights.unlink()
    assert "adapter" in refusal(name)
    assert "allow_pickle=True" in refusal(name)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "../model.safetensors"])
def test_a_config_names_no_pickle(llama, file):
    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    change(llama, transformers_weights=file)
    assert refusal(llama)


def test_an_index_that_is_right_is_loaded(llama):
    before = load_model(llama).model.state_dict()
    index(llama, "part.safetensors")
    (llama / "model.safetensors").rename(llama / "part.safetensors")
    after = load_model(llama).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"num_hidden_layers": 9_999}, "not one for each layer"),
        ({"text_config": {"num_hidden_layers": 9_999}}, "not one for each layer"),
        ({"num_experts": 10**6}, "no model has so many"),
        ({"intermediate_size": 10**12}, "GiB for its weights"),
    ],
)
def test_more_than_the_weights_have_is_refused_before_it_is_made(llama, facts, said):
    change(llama, **facts)
    start = time.monotonic()
    assert said in refusal(llama)
    assert time.monotonic() - start < 3


def step(kind, **facts):
    return {"type": kind, **facts}


def replace(n_letters):
    return step("Replace", pattern={"Regex": "."}, content="a" * n_letters)


BOMBS = {
    "one step": replace(10**6),
    "many steps": step("Sequence", normalizers=[replace(4)] * 12),
    "nested": step("Sequence", normalizers=[step("Sequence", normalizers=[replace(50)] * 3)]),
    "before it": step("Prepend", prepend="a" * 10**7),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_tokenizer_cannot_make_a_flood_of_a_letter(llama, bomb):
    path = llama / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": BOMBS[bomb]}))
    assert "letters of one" in refusal(llama)


def test_a_table_of_letters_is_read_too(llama):
    table = struct.pack("<I", 4) + bytes(4) + b"a" * 10**6 + b"\0"
    normalizer = step("Precompiled", precompiled_charsmap=base64.b64encode(table).decode())
    path = llama / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))
    assert "letters of one" in refusal(llama)


def test_a_usual_normalizer_is_accepted(llama):
    steps = [step("Prepend", prepend="▁"), step("Replace", pattern={"String": " "}, content="▁")]
    path = llama / "tokenizer.json"
    sequence = step("Sequence", normalizers=[*steps, step("NFKC")])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": sequence}))
    assert load_model(llama).tokenizer is not None


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_gigabyte_of_nothing_is_no_json(llama, name):
    # The small one is read and the large one is not; it is of holes and takes no room.
    for size, words in (
        (10_000, "not a text"),
        (2**30, "1,073,741,824 bytes, which is no model's"),
    ):
        (llama / name).write_bytes(b"")
        os.truncate(llama / name, size)
        assert words in refusal(llama)


def refusal_apart(path):
    """Of a path, in a process that may take 512 MiB and 15 s more: a device has no end."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def load():
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**29,) * 2)
        signal.alarm(15)
        return refusal(path)

    return Forked(load).answer()


def test_a_device_is_neither_a_model_nor_a_file_of_one(llama, tmp_path):
    expected = {}
    for name in ("config.json", "tokenizer.json", "model.safetensors", "vocab.txt"):
        folder = shutil.copytree(llama, tmp_path / name.replace(".", " "))
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")
        expected[folder] = f"has a {name} that is no plain file"
    for name, words in {"x": "is a file, but no .gguf", "x.gguf": "is no plain file"}.items():
        (tmp_path / name).symlink_to("/dev/zero")
        expected[tmp_path / name] = words
    for path, words in expected.items():
        said = refusal_apart(path)
        assert said is not None, f"{path}: out of memory or time, or not refused"
        assert words in said


def test_no_model_has_so_many_layers_whatever_its_weights_are():
    for n_tensors in (None, 10**6):
        with pytest.raises(Refusal, match=r"is 10,001 .* no model has so many"):
            check_layers("n_layer", 10_001, n_tensors)
        check_layers("n_layer", 10_000, n_tensors)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_of_another_kind_of_number_are_named(llama, dtype):
    weights = load_file(llama / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(dtype)
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    text = refusal(llama)
    assert name in text
    assert str(dtype).removeprefix("torch.") in text
