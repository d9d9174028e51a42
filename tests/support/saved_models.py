"""Folders of tiny models that were saved, and what a refused load says."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from devices import DEVICE
from huggingface_hub import constants
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from llmprobe.capture.loading import load_model
from llmprobe.errors import ModelLoadError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = torch.arange(12).reshape(2, 6).to(DEVICE)


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
