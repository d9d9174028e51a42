"""A plan from the config alone is the plan of the run."""

import dataclasses

import pytest
import transformers
from families import tiny

from llmprobe import errors
from llmprobe.probes.attention import AttentionProbe
from llmprobe.probes.plans import plan_probe
from llmprobe.probes.probe import start
from llmprobe.probes.request import Request
from llmprobe.probes.variance import VarianceProbe, VarianceRequest


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (VarianceProbe, VarianceRequest(lengths="8..64", n_prompts=4, layers="all")),
        (VarianceProbe, VarianceRequest(lengths="8..64", n_prompts=4, query="fixed", chunk=8)),
        (VarianceProbe, VarianceRequest(lengths="32,64", n_prompts=4, prompts="dictionary")),
        (AttentionProbe, Request(lengths="8", n_prompts=4, batch_tokens=16)),
    ],
)
def test_it_is_what_the_run_does(kind, asked):
    plans = plan_probe(kind, "builtin", asked), start(kind, "builtin", asked).plan
    first, second = (dataclasses.replace(plan, seconds=0) for plan in plans)
    assert first == second


def test_no_weights_are_read(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("weights")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    assert plan_probe(VarianceProbe, "builtin", VarianceRequest()).n_tokens == 65536


def test_a_model_that_does_not_declare_its_attention_is_loaded(tmp_path):
    tiny("gptj").save_pretrained(tmp_path / "gptj")
    asked = VarianceRequest(lengths="8,16", n_prompts=4)
    assert plan_probe(VarianceProbe, str(tmp_path / "gptj"), asked).n_tokens == 64


def test_what_a_run_refuses_is_refused(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="beyond the 128 positions"):
        plan_probe(VarianceProbe, str(tmp_path / "gpt2"), VarianceRequest(lengths="256"))
    start(
        VarianceProbe, "builtin", VarianceRequest(lengths="8,16"), output=tmp_path / "a"
    ).execute()
    other = VarianceRequest(lengths="8,32")
    with pytest.raises(errors.CheckpointError, match="holds another run"):
        plan_probe(VarianceProbe, "builtin", other, output=tmp_path / "a")
    assert plan_probe(VarianceProbe, "builtin", other, output=tmp_path / "a", overwrite=True)
