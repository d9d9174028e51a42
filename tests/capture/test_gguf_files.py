"""GGUF files: what they declare, and that loading them quickly changes no bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import _type_traits
from saved_models import write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from llmprobe.capture import gguf_files
from llmprobe.capture.gguf_files import gguf_values, quick_gguf
from llmprobe.capture.loading import load_model


def test_files_are_parsed_as_plain_arrays_to_the_same_contents(tmp_path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "bc", "é"])
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file):
        write()
    writer.write_tensors_to_file()
    writer.close()
    mapped = gguf.GGUFReader(path)
    with quick_gguf():
        plain = gguf.GGUFReader(path)
    assert gguf.GGUFReader is type(mapped)
    assert type(plain.tensors[0].data) is np.ndarray
    np.testing.assert_array_equal(plain.tensors[0].data, mapped.tensors[0].data)
    contents = [{n: f.contents() for n, f in x.fields.items()} for x in (plain, mapped)]
    assert contents[0] == contents[1]


def test_numbers_that_a_gguf_file_declares_are_found_among_all_else(tmp_path):
    path, names = tmp_path / "x.gguf", ("tokenizer.ggml.bos_token_id", "general.alignment", "no")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "bc", "é" * 300])
    writer.add_array("some.numbers", [1.5, 2.5])
    writer.add_array("nested", [["a", "b"], ["c"]])
    for add in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool"):
        getattr(writer, f"add_{add}")(f"as.{add}", 1)
    writer.add_float64("as.float64", 0.5)
    writer.add_bos_token_id(7)
    writer.add_custom_alignment(32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = {"tokenizer.ggml.bos_token_id": 7, "general.alignment": 32}
    assert gguf_values(path, names) == found
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert gguf_values(path, names).items() <= found.items()
    path.write_bytes(whole[:16] + b"\xff" * 100)
    assert gguf_values(path, names) == {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # some random scales are infinite
@pytest.mark.parametrize("kind", [k.name for k in (*_type_traits, gguf.GGMLQuantizationType.F16)])
def test_weights_of_every_type_are_unpacked_to_the_same_bits(kind, monkeypatch):
    monkeypatch.setattr(gguf_files, "_PIECE", 600)
    kind = gguf.GGMLQuantizationType[kind]
    _, packed = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 256, (3, 7, 2 * packed), dtype=np.uint8)
    expected = gguf.dequantize(data, kind)
    with quick_gguf():
        given = gguf.dequantize(data, kind)
    assert given.shape == expected.shape
    np.testing.assert_array_equal(np.copy(given).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1", "Q8_0"])
def test_models_are_loaded_to_the_bits_of_transformers(kind, tmp_path):
    write_gguf(tmp_path / "x.gguf", kind=kind)
    loaded = load_model(tmp_path / "x.gguf")
    options = {"gguf_file": "x.gguf", "local_files_only": True}
    plain = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **options
    )
    expected = plain.state_dict()
    assert loaded.model.state_dict().keys() == expected.keys()
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight.cpu().view(torch.int32), expected[name].view(torch.int32)), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **options)
    assert tokenizer.get_vocab() == loaded.tokenizer.get_vocab()


def test_parts_of_a_tensor_are_copied_and_whole_ones_are_not():
    whole = np.zeros((4, 6), np.float32).view(gguf_files._Fresh)
    assert np.shares_memory(np.copy(whole.T), whole)
    assert not np.shares_memory(np.copy(whole[:2]), whole)
    assert type(np.copy(whole)) is np.ndarray


def test_all_is_as_before_afterwards():
    before = {name: getattr(gguf, name) for name in ("GGUFReader", "dequantize")}
    with quick_gguf():
        assert all(getattr(gguf, name) is not value for name, value in before.items())
    assert all(getattr(gguf, name) is value for name, value in before.items())
