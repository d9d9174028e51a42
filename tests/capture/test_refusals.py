"""Whatever keeps a model from being loaded is one line that says what to do."""

import errno
import json
import socket

import httpx2
import pytest
import torch
from checkout import ROOT
from huggingface_hub import constants, errors
from saved_models import TOKENS, cause, refusal

from llmprobe.capture.loading import load_model


def hub_error(kind):
    response = httpx2.Response(
        404, request=httpx2.Request("GET", "https://huggingface.co/one/llama")
    )
    return kind("line one\nline two", response=response)


@pytest.mark.parametrize(
    ("kind", "token", "said"),
    [
        (errors.GatedRepoError, None, "hf auth login"),
        (errors.GatedRepoError, "hf_x", "your token has no access"),
        (errors.RepositoryNotFoundError, None, "not on the hub"),
        (errors.RevisionNotFoundError, None, "has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(monkeypatch, kind, token, said):
    def refuse(*_, **__):
        raise hub_error(kind)

    monkeypatch.setattr("llmprobe.capture.loading.hf_hub_download", refuse)
    monkeypatch.setattr("llmprobe.capture.refusals.get_token", lambda: token)
    text = refusal("one/llama@v9")
    assert text.startswith("one/llama@v9 ")
    assert said in text
    assert isinstance(cause("one/llama@v9"), kind)


def test_a_repository_without_config_says_what_it_has(monkeypatch):
    def refuse(*_, **__):
        raise hub_error(errors.RemoteEntryNotFoundError)

    monkeypatch.setattr("llmprobe.capture.loading.hf_hub_download", refuse)
    monkeypatch.setattr(
        "llmprobe.capture.refusals.list_repo_files", lambda *_, **__: ["README.md", "x.gguf"]
    )
    assert "x.gguf" in refusal("one/llama-GGUF")


def test_offline_and_not_in_the_cache(cache, monkeypatch):
    assert "HF_HUB_OFFLINE is set" in refusal("two/absent")
    (cache / "model.safetensors").unlink()
    assert "HF_HUB_OFFLINE is set" in refusal("one/llama")

    def unreachable(*_, **__):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the hub's client tries again and again
    assert "cannot be reached" in refusal("two/absent")


def test_a_hub_pickle_is_told_from_missing_weights(cache, monkeypatch):
    (cache / "model.safetensors").unlink()
    files = ["config.json", "pytorch_model.bin"]
    monkeypatch.setattr("llmprobe.capture.refusals.list_repo_files", lambda *_, **__: files)
    assert "allow_pickle" in refusal("one/llama")


@pytest.mark.parametrize("name", ["a/b/c", "what is this", "two\nlines"])
def test_names_that_can_be_nothing(name):
    assert "check the path" in refusal(name)


def test_other_kinds_of_models_are_refused(kept):
    assert "is ViTModel, of a kind that cannot be probed" in refusal(kept / "vit")


def test_the_built_in_model_is_loaded_or_missed():
    if (ROOT / "llmprobe" / "capture" / "builtin").is_dir():
        assert load_model("builtin").name == "builtin"
    else:
        assert "reinstall" in refusal("builtin")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "empty folder"),
        (["README.md"], "no config.json"),
        (["result.json", "arrays.npz"], "load_result"),
        (["x.Q4.gguf"], "like x.Q4.gguf"),
        (["config.json"], "no weights"),
        (["config.json", "pytorch_model.bin"], "allow_pickle"),
    ],
)
def test_wrong_folders_say_what_they_are(tmp_path, files, said):
    for name in files:
        (tmp_path / name).write_text("{}")
    assert said in refusal(tmp_path)


def test_wrong_files_say_what_they_are(llama, tmp_path):
    assert "no .gguf" in refusal(llama / "model.safetensors")
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "x.gguf").write_bytes(b"")
    assert "no GGUF file" in refusal(tmp_path / "x.gguf")


def test_a_pickle_is_loaded_only_if_allowed(llama):
    original = load_model(llama).model
    weights = {name: weight.cpu() for name, weight in original.state_dict().items()}
    torch.save(weights, llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    assert "allow_pickle" in refusal(llama)
    loaded = load_model(llama, allow_pickle=True)
    assert torch.equal(loaded.model(TOKENS).logits, original(TOKENS).logits)


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_truncated_weights_are_an_error(llama, size):
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    assert "truncated" in refusal(llama)
    assert cause(llama) is not None


def test_weights_that_would_be_made_up_are_an_error(llama):
    load_model(llama).model.model.save_pretrained(llama)
    assert "lm_head.weight" in refusal(llama)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"intermediate_size": 44}, "mlp"),
        ({"model_type": "llamax"}, "llamax"),
        ({"model_type": "llamax", "auto_map": {"AutoConfig": "code.Config"}}, "trust_remote_code"),
        ({"hidden_size": "wide"}, "expected int"),
        ({"vocab_size": 10**11}, "GiB for its weights"),
        ({"intermediate_size": 10**12}, "GiB for its weights"),
        ({"num_hidden_layers": 10**9}, "no model has so many"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "no model has so many"),
    ],
)
def test_a_config_that_does_not_fit_is_an_error(llama, change, said):
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | change))
    assert said in refusal(llama)


def test_a_config_that_is_no_json_is_an_error(llama):
    (llama / "config.json").write_text("{nonsense")
    assert "JSON" in refusal(llama)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_model_too_large_for_the_memory(llama, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    assert "memory" in refusal(llama)
    assert cause(llama) is error


def test_gguf_files_need_the_package(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("llmprobe.capture.refusals.find_spec", lambda _: None)
    assert "pip install 'llmprobe[gguf]'" in refusal(tmp_path / "x.gguf")


def test_damaged_gguf_files_are_an_error(tmp_path):
    for rest in (b"", b"\3\0\0\0", b"\3\0\0\0" + b"\1" * 64, bytes(200)):
        (tmp_path / "x.gguf").write_bytes(b"GGUF" + rest)
        assert "damaged" in refusal(tmp_path / "x.gguf")
