"""One call loads every kind of model; whatever fails is one line that says what to do."""

import errno
import json
import logging
import os
import shutil
import socket
from pathlib import Path

import httpx2
import pytest
import torch
import transformers
from conftest import ROOT
from huggingface_hub import constants, errors
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from llmprobe.errors import ModelLoadError
from llmprobe.models import LoadedModel, load_model
from llmprobe.synthetic.network import SetNetwork
from llmprobe.synthetic.tasks import VOCAB_SIZE

STORIES = ROOT.parent / "shared" / "data" / "stories260K"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = torch.arange(12).reshape(2, 6)


def make(family, **options):
    """A model with random weights; none has more than 100,000 parameters."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZE, **options})
    with_head = {"Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration"}
    with_head["GPT2"] = "GPT2LMHeadModel"
    model = getattr(transformers, with_head.get(family, f"{family}ForCausalLM"))(config).eval()
    assert sum(p.numel() for p in model.parameters()) < 100_000
    return model


def make_tokenizer(*, adds_bos):
    words = ["<s>", "<unk>", "x", *"abcdefgh"]
    backend = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Folders of tiny models, written once; tests copy what they want to break."""
    root = tmp_path_factory.mktemp("models")
    make("Llama", intermediate_size=48, max_position_embeddings=64).save_pretrained(root / "llama")
    make_tokenizer(adds_bos=True).save_pretrained(root / "llama")
    make("GPT2", max_position_embeddings=24).save_pretrained(root / "gpt2")
    opt = {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 24}
    make("OPT", **opt).save_pretrained(root / "opt")
    make("Bert", intermediate_size=48, max_position_embeddings=24).save_pretrained(root / "bert")
    make("T5", d_kv=8, d_ff=48).save_pretrained(root / "t5")
    make("Bloom").save_pretrained(root / "bloom")
    return root


@pytest.fixture
def llama(kept, tmp_path):
    return Path(shutil.copytree(kept / "llama", tmp_path / "llama"))


@pytest.fixture
def cache(kept, tmp_path, monkeypatch):
    """A hub cache that holds one/llama at one commit."""
    home = tmp_path / "hub" / "models--one--llama"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    shutil.copytree(kept / "llama", home / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return home / "snapshots" / COMMIT


def refusal(name, **options):
    """The one line of a refused load."""
    with pytest.raises(ModelLoadError) as caught:
        load_model(name, **options)
    text = str(caught.value)
    assert text.isprintable()
    assert "Traceback" not in text
    assert len(text) < 700
    return text


def cause(name, **options):
    with pytest.raises(ModelLoadError) as caught:
        load_model(name, **options)
    return caught.value.__cause__


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom"])
def test_a_folder_gives_the_model_that_was_saved(kept, family):
    original = transformers.AutoModelForCausalLM.from_pretrained(kept / family).eval()
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
    assert load_model(llama, attention="eager").attention == "eager"
    assert "nonsense" in refusal(llama, attention="nonsense")


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
    monkeypatch.setattr("llmprobe.models.hf_hub_download", fail)
    monkeypatch.setattr("llmprobe.models.list_repo_files", fail)
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
    refusal(llama, attention="nonsense")
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

    monkeypatch.setattr("llmprobe.models.hf_hub_download", refuse)
    monkeypatch.setattr("llmprobe.models.get_token", lambda: token)
    text = refusal("one/llama@v9")
    assert text.startswith("one/llama@v9 ")
    assert said in text
    assert isinstance(cause("one/llama@v9"), kind)


def test_a_repository_without_config_says_what_it_has(monkeypatch):
    def refuse(*_, **__):
        raise hub_error(errors.RemoteEntryNotFoundError)

    monkeypatch.setattr("llmprobe.models.hf_hub_download", refuse)
    monkeypatch.setattr("llmprobe.models.list_repo_files", lambda *_, **__: ["README.md", "x.gguf"])
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
    monkeypatch.setattr("llmprobe.models.list_repo_files", lambda *_, **__: files)
    assert "allow_pickle" in refusal("one/llama")


@pytest.mark.parametrize("name", ["a/b/c", "what is this", "two\nlines"])
def test_names_that_can_be_nothing(name):
    assert "check the path" in refusal(name)


@pytest.mark.parametrize(
    ("family", "said"), [("bert", "BertForMaskedLM, an encoder;"), ("t5", "encoder-decoder")]
)
def test_only_causal_models_are_loaded(kept, family, said):
    assert said in refusal(kept / family)


def test_a_bert_made_a_decoder_is_causal(tmp_path):
    make("Bert", intermediate_size=48, is_decoder=True).save_pretrained(tmp_path / "bert")
    assert load_model(tmp_path / "bert").learned_positions == 512


def test_the_built_in_model_is_loaded_or_missed():
    if (ROOT / "llmprobe" / "builtin").is_dir():
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
    torch.save(original.state_dict(), llama / "pytorch_model.bin")
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

    monkeypatch.setattr("llmprobe.models.AutoModelForCausalLM.from_pretrained", fail)
    assert "memory" in refusal(llama)
    assert cause(llama) is error


def test_gguf_files_need_the_package(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("llmprobe.models.find_spec", lambda _: None)
    assert "pip install 'llmprobe[gguf]'" in refusal(tmp_path / "x.gguf")


def test_damaged_gguf_files_are_an_error(tmp_path):
    for rest in (b"", b"\3\0\0\0", b"\3\0\0\0" + b"\1" * 64, bytes(200)):
        (tmp_path / "x.gguf").write_bytes(b"GGUF" + rest)
        assert "damaged" in refusal(tmp_path / "x.gguf")


@pytest.mark.skipif(not STORIES.is_dir(), reason="the shared data is not here")
def test_a_trained_model_tells_a_story():
    loaded = load_model(STORIES, device="cpu")
    assert isinstance(loaded, LoadedModel)
    assert (loaded.name, loaded.context_length, loaded.vocab_size) == ("stories260K", 512, 512)
    tokens = loaded.tokenizer("Once upon a time, there was a little girl.", return_tensors="pt")
    loss = loaded.model(tokens.input_ids, labels=tokens.input_ids).loss.item()
    assert loss < 3  # a guess at random has 6.24


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
