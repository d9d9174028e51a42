"""One call loads every kind of model."""

import json
import logging
import os
import socket

import pytest
import torch
import transformers
from devices import DEVICE
from huggingface_hub import constants
from saved_models import COMMIT, TOKENS, make, make_tokenizer, refusal, write_gguf

from llmprobe import probe_variance
from llmprobe.capture.loading import LoadedModel, as_loaded, load_model, module_of
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.tasks import VOCAB_SIZE


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom"])
def test_a_folder_gives_the_model_that_was_saved(kept, family):
    original = transformers.AutoModelForCausalLM.from_pretrained(kept / family).eval().to(DEVICE)
    loaded = load_model(kept / family)
    assert torch.equal(loaded.model(TOKENS).logits, original(TOKENS).logits)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_the_facts_are_plain_and_show_no_path(llama):
    loaded = load_model(str(llama))
    assert loaded.describe() == {
        "name": "llama",
        "revision": None,
        "dtype": "float32",
        "device": loaded.model.device.type,
        "attention": "sdpa",
        "context_length": 64,
        "learned_positions": None,
        "layer_types": None,
        "vocab_size": 40,
        "bos_token_id": 0,
        "adds_bos": True,
        "quantized": None,
        "part": None,
    }
    assert str(llama.parent) not in repr(loaded) + json.dumps(loaded.describe())
    with pytest.raises(AttributeError):
        loaded.name = "other"


def test_what_exists_is_a_path_and_is_shown_by_its_name(llama, monkeypatch):
    monkeypatch.chdir(llama.parent)
    (llama.parent / "link").symlink_to(llama)
    for name in ("llama", "./llama", "llama/"):
        assert load_model(name).name == "llama"
    assert load_model("link").name == "link"
    monkeypatch.chdir(llama)
    assert load_model(".").name == "llama"


def test_a_name_a_module_and_a_loaded_model_are_the_same_model(llama):
    loaded = load_model(llama)
    assert as_loaded(loaded) is loaded
    assert as_loaded(loaded.model).model is loaded.model
    assert module_of(loaded) is module_of(loaded.model) is loaded.model
    for name in (llama, str(llama)):
        assert as_loaded(name).describe() == loaded.describe()
        assert torch.equal(module_of(name)(TOKENS).logits, loaded.model(TOKENS).logits)


def test_a_name_takes_load_options_and_a_loaded_model_none_but_the_defaults(llama):
    loaded = as_loaded(llama, dtype="bf16", device="cpu")
    assert loaded.dtype == "bfloat16"
    assert as_loaded(loaded, dtype="auto", device="auto", revision=None) is loaded
    for given in (loaded, loaded.model):
        with pytest.raises(ValueError, match=r"^dtype: the model is already loaded; [^\n]*$"):
            as_loaded(given, dtype="bf16", device="auto")
        with pytest.raises(ValueError, match=r"^dtype, device: the model is already loaded"):
            as_loaded(given, dtype="bf16", device="cpu")


def test_a_tokenizer_replaces_the_models_with_what_is_known_of_it(llama):
    other = make_tokenizer(adds_bos=False)
    loaded = load_model(llama)
    assert loaded.adds_bos
    for given in (loaded, loaded.model, llama):
        replaced = as_loaded(given, tokenizer=other)
        assert replaced.tokenizer is other
        assert not replaced.adds_bos
    assert loaded.tokenizer is not other


@pytest.mark.parametrize("wrong", [None, 3, ["builtin"]])
def test_what_is_no_model_is_refused_with_what_is_accepted(wrong):
    with pytest.raises(ValueError, match=r"^model: got \w+, accepted: a name .*nn.Module[^\n]*$"):
        module_of(wrong)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float16])
def test_dtype_and_device_are_what_was_asked_for(llama, dtype):
    loaded = load_model(llama, dtype=dtype, device="cpu")
    assert loaded.dtype == str(dtype).removeprefix("torch.")
    assert {str(p.dtype) for p in loaded.model.parameters()} == {f"torch.{loaded.dtype}"}
    assert loaded.device == "cpu"


def test_accelerate_places_the_model_if_asked(llama):
    loaded = load_model(llama, device_map="auto")
    assert loaded.device == load_model(llama).device
    with pytest.raises(ValueError, match="only one"):
        load_model(llama, device_map="auto", device="cpu")


def test_the_attention_backend_can_be_chosen(llama):
    assert load_model(llama, attn_implementation="eager").attention == "eager"
    assert "nonsense" in refusal(llama, attn_implementation="nonsense")


@pytest.mark.parametrize(("family", "limit"), [("gpt2", 24), ("opt", 24), ("llama", None)])
def test_a_learned_table_of_positions_serves_its_length_and_not_one_more(kept, family, limit):
    loaded = load_model(kept / family, device="cpu")
    assert loaded.learned_positions == limit
    prompt = torch.zeros(1, (limit or 100) + 1, dtype=torch.long)
    if limit is None:
        loaded.model(prompt)
        return
    loaded.model(prompt[:, 1:])
    with pytest.raises(IndexError):
        loaded.model(prompt)


def test_an_unknown_context_is_none(kept):
    loaded = load_model(kept / "bloom")
    assert (loaded.context_length, loaded.learned_positions) == (None, None)


def test_layer_types_come_from_the_config(tmp_path):
    types = ["sliding_attention", "full_attention"]
    make("Qwen2", intermediate_size=48, num_key_value_heads=2, layer_types=types).save_pretrained(
        tmp_path / "mixed"
    )
    assert load_model(tmp_path / "mixed").layer_types == tuple(types)


@pytest.mark.parametrize("family", ["gpt2", "opt", "bloom"])
def test_without_tokenizer_files_there_is_no_tokenizer(kept, family):
    loaded = load_model(kept / family)
    assert loaded.tokenizer is None
    assert not loaded.adds_bos


def test_llama_without_tokenizer_files_loads_too(llama):
    for file in llama.glob("tokenizer*"):
        file.unlink()
    loaded = load_model(llama)
    assert loaded.tokenizer is None
    assert loaded.bos_token_id == loaded.model.config.bos_token_id


def test_a_broken_tokenizer_is_an_error(llama):
    for text in ("{nonsense", "{}"):
        (llama / "tokenizer.json").write_text(text)
        assert "its tokenizer" in refusal(llama)


def test_adds_bos_is_read_off_the_tokenizer(llama):
    make_tokenizer(adds_bos=False).save_pretrained(llama)
    loaded = load_model(llama)
    assert (loaded.bos_token_id, loaded.adds_bos) == (0, False)


def test_a_local_path_never_reaches_for_the_network(llama, kept, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("llmprobe.capture.loading.hf_hub_download", fail)
    monkeypatch.setattr("llmprobe.capture.refusals.list_repo_files", fail)
    load_model(llama)
    load_model(kept / "gpt2")
    for name in ("./nowhere", "nowhere.GGUF", "~/nowhere-at-all", "C:\\nowhere"):
        assert "does not exist" in refusal(name)


def test_loading_is_silent_and_leaves_the_settings_alone(llama, capfd, monkeypatch):
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", True)
    monkeypatch.delenv("DISABLE_SAFETENSORS_CONVERSION", raising=False)
    logger = logging.getLogger("transformers")
    before = logger.level, logger.handlers[:], dict(os.environ)
    load_model(llama)
    refusal(llama, attn_implementation="nonsense")
    assert capfd.readouterr() == ("", "")
    assert before == (logger.level, logger.handlers, dict(os.environ))
    assert transformers.logging.set_tqdm_hook(None) is None


def test_a_hub_id_is_pinned_to_its_commit(cache, llama):
    expected = load_model(llama).model(TOKENS).logits
    for name, options in [
        ("one/llama", {}),
        ("one/llama@main", {}),
        ("one/llama@main", {"revision": "main"}),
    ]:
        loaded = load_model(name, **options)
        assert (loaded.name, loaded.revision) == ("one/llama", COMMIT)
        assert torch.equal(loaded.model(TOKENS).logits, expected)
    assert load_model("one/llama", revision=COMMIT).revision == COMMIT


def test_contradictory_revisions_are_wrong_arguments(llama):
    with pytest.raises(ValueError, match="only one"):
        load_model("one/llama@main", revision="other")
    with pytest.raises(ValueError, match="local"):
        load_model(llama, revision="main")
    with pytest.raises(ValueError, match="accepted"):
        load_model("")


def test_a_bert_made_a_decoder_is_causal(tmp_path):
    make("Bert", intermediate_size=48, is_decoder=True).save_pretrained(tmp_path / "bert")
    assert load_model(tmp_path / "bert").learned_positions == 512


def test_a_trained_model_knows_english():
    loaded = load_model("builtin", device="cpu")
    assert isinstance(loaded, LoadedModel)
    assert (loaded.name, loaded.context_length, loaded.vocab_size) == ("builtin", 256, 2048)
    text = "He had been in the house for a long time, and he did not know what to say to her."
    tokens = loaded.tokenizer(text, return_tensors="pt").input_ids
    loss = loaded.model(tokens, labels=tokens).loss.item()
    assert loss < 3  # a guess at random has 7.62, the words in another order 6 or more
    mixed = tokens[:, torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(0))]
    assert loaded.model(mixed, labels=mixed).loss.item() > 6


@pytest.mark.skipif("LLMPROBE_SMOLLM2" not in os.environ, reason="names no .gguf file")
def test_a_real_gguf_file():
    loaded = load_model(os.environ["LLMPROBE_SMOLLM2"], device="cpu")
    assert loaded.name.endswith(".gguf")
    assert (loaded.context_length, loaded.learned_positions) == (8192, None)
    assert (loaded.dtype, loaded.attention, loaded.adds_bos) == ("float32", "sdpa", False)
    tokens = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    best = loaded.model(tokens).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best).strip() == "Paris"


def test_without_a_config_the_embedding_says_how_many_tokens_there_are():
    """Its weight need not have a row for each."""
    loaded = LoadedModel.of(SetNetwork("argmax", width=8))
    assert loaded.vocab_size == VOCAB_SIZE
    assert (loaded.name, loaded.context_length, loaded.bos_token_id) == ("SetNetwork", None, None)


@pytest.mark.parametrize(("adds", "bos"), [(None, "no"), (False, "no"), (True, "yes")])
def test_a_gguf_file_that_declares_bos_gets_it_and_results_say_so(adds, bos, tmp_path):
    write_gguf(tmp_path / "x.gguf", adds=adds)
    loaded = load_model(tmp_path / "x.gguf")
    assert (loaded.adds_bos, loaded.bos_token_id) == (adds is True, 1)
    assert loaded.tokenizer("ab").input_ids == [259]
    (tmp_path / "t.txt").write_text("ab ba " * 100)
    for options in ({}, {"prompts": "text", "text": tmp_path / "t.txt"}):
        arguments = probe_variance(loaded, "2,4", n_prompts=4, **options).provenance.arguments
        assert (arguments["bos"], arguments["bos_token"]) == (bos, "<s>" if adds else None)
    forced = probe_variance(loaded, "2,4", n_prompts=4, bos="yes").provenance.arguments
    assert (forced["bos"], forced["bos_token"]) == ("yes", "<s>")
