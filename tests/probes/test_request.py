"""What is wrong with arguments is found before anything runs; what weakens numbers is noted."""

import pytest
from families import tiny

from llmprobe import load_model
from llmprobe.probes.probe import start
from llmprobe.probes.variance import VarianceProbe, VarianceRequest


def ready(model="builtin", lengths="16..64", tokenizer=None, **options):
    given = {"n_prompts": 32, "lengths": lengths} | options
    return start(VarianceProbe, model, VarianceRequest(**given), tokenizer=tokenizer).probe.ready


def test_a_name_a_loaded_model_and_a_module_come_to_the_same():
    loaded = load_model("builtin")
    by_name, by_model = ready("builtin"), ready(loaded)
    by_module = ready(loaded.model, tokenizer=loaded.tokenizer)
    assert by_name.prompts.digest() == by_model.prompts.digest() == by_module.prompts.digest()
    assert by_name.provenance.model == "builtin"
    assert by_module.provenance.model == "LlamaForCausalLM"


def test_bos_follows_the_tokenizer_unless_told():
    assert (ready().prompts.batch([0, 1], 16)[:, 0] == 0).all()
    assert (ready(bos="no").prompts.batch([0, 1], 16)[:, 0] != 0).all()
    with pytest.raises(ValueError, match='no BOS token; use bos="no"'):
        model = tiny("bloom")
        model.config.bos_token_id, kept = None, model.config.bos_token_id
        try:
            ready(model, bos="yes")
        finally:
            model.config.bos_token_id = kept


def test_lengths_beyond_a_learned_table_are_refused_and_beyond_the_context_noted():
    with pytest.raises(ValueError, match="beyond the 128 positions that GPT2"):
        ready(tiny("gpt2"), "16..256")
    assert any("beyond the context" in note for note in ready(lengths="16..512").warnings)
    assert ready().warnings == ()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"n_prompts": 2.5}, "n_prompts: got 2.5, accepted: 2 or more, to 1,000,000"),
        ({"n_prompts": 10**7}, "n_prompts: got 10000000, accepted: 2 or more, to 1,000,000"),
        ({"batch_tokens": 10**30}, "batch_tokens: got 1000"),
        ({"chunk": 0}, "chunk: got 0, accepted: 1 or more"),
        ({"seed": 10**30}, "seed: got 1000"),
        ({"at": "middle"}, "at: got 'middle', accepted: output, heads"),
        ({"bos": "maybe"}, "bos: got 'maybe', accepted: auto, yes, no"),
        ({"dataset": ""}, "dataset: got ''"),
        ({"prompts": "text"}, "text prompts need a text"),
    ],
)
def test_what_can_be_asked_of_no_model_is_refused_before_one_is_loaded(options, line):
    with pytest.raises(ValueError, match=line):
        ready("no/such-model", **options)


def test_prompts_that_are_all_the_same_are_refused(tmp_path):
    (tmp_path / "same.txt").write_text("a" * 5000)
    with pytest.raises(ValueError, match="all 32 are the same, so nothing varies"):
        ready(prompts="text", text=tmp_path / "same.txt")


def test_windows_and_one_pass_per_length_are_noted():
    windowed = ready(tiny("mistral"), layers=None).warnings
    assert "layers 0, 1 see only the last 4 tokens: no decay is expected beyond 4" in windowed
    one = ready(tiny("gemma2"), layers=None, lengths="2,8").warnings
    assert "layer 0 sees only the last 4 tokens: no decay is expected beyond 4" in one
    assert not any("sees only" in note for note in ready(tiny("gemma2"), lengths="2,4").warnings)
    model = tiny("llama")

    def spread(module, args, output):
        return output + output.mean(dim=1, keepdim=True)

    handle = model.model.layers[0].input_layernorm.register_forward_hook(spread)
    prepared = ready(model)
    handle.remove()
    assert not prepared.plan.one_pass
    assert any("one pass per length" in note for note in prepared.warnings)


def test_one_pass_serves_prompts_that_begin_alike():
    assert ready().plan.one_pass
    assert ready(query="fixed").plan.one_pass
    assert not ready(prompts="dictionary", lengths=(64, 128)).plan.one_pass


@pytest.mark.parametrize("name", ["dataset", "text"])
def test_no_folder_is_named_in_a_result(name, tmp_path, monkeypatch):
    home = tmp_path / "alice"
    home.mkdir()
    (home / "x.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    for given in (home, "alice", "./alice", "~", f"{home}:train", "alice:test"):
        recorded = VarianceRequest(**{name: str(given)}).record((8,), ())[name]
        assert recorded.startswith("a local folder")
    for given in (home / "x.txt", "alice/x.txt", "~/x.txt"):
        assert VarianceRequest(**{name: given}).record((8,), ())[name] == "x.txt"
    assert VarianceRequest(**{name: "a/b:test"}).record((8,), ())[name] == "a/b:test"
    assert VarianceRequest(**{name: f"{home}/x.txt:train"}).record((8,), ())[name] == "x.txt:train"
