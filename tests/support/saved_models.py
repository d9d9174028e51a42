"""Folders of tiny models that were saved, and what a refused load says."""

import shutil
from pathlib import Path

import gguf
import numpy as np
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
    other = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel", "ViT": "ViTModel"}
    model = getattr(transformers, other.get(family, f"{family}ForCausalLM"))(config).eval()
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
    make("ViT", intermediate_size=48).save_pretrained(root / "vit")
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


def write_gguf(path, *, adds=None, kind="F32"):
    """A small Llama with a byte-level tokenizer, which begins no text with BOS by itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<s>", "</s>", *alphabet, "ab"]
    writer, generator = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    if adds is not None:
        writer.add_add_bos_token(adds)
    shapes = {f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (64, 32) for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (32, 64), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {name: (len(tokens), 32) for name in ("token_embd", "output")}
    kind = gguf.GGMLQuantizationType[kind]
    for name, shape in (shapes | {"output_norm": (32,)}).items():
        numbers = generator.standard_normal(shape).astype(np.float32)
        if len(shape) > 1 and kind != gguf.GGMLQuantizationType.F32:
            packed = gguf.quantize(numbers, kind)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
