"""Probes of the parts of encoder-decoders equal brute force, and name what they are of."""

import dataclasses

import brute
import numpy as np
import pytest
import torch
from encoder_decoders import encoder_decoder, gather, plain, read
from saved_models import make_tokenizer
from transformers import AutoModelForSeq2SeqLM
from typer.testing import CliRunner

from llmprobe import (
    UnsupportedModelError,
    load_model,
    probe_attention,
    probe_loss,
    probe_variance,
)
from llmprobe.capture.parts import PARTS
from llmprobe.cli import app
from llmprobe.probes.plans import plan_probe
from llmprobe.probes.probe import start
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.variance import VarianceProbe, VarianceRequest

LENGTHS = (4, 9, 24)
FAMILIES = ("t5", "t5gemma", "bart", "mvp")


def prompts_of(family, part, n_prompts):
    """A decoder's prompts begin with its start token."""
    config = encoder_decoder(family).config
    begins = getattr(config, "decoder_start_token_id", None)
    begins = config.bos_token_id if begins is None else begins
    bos = begins if part == "decoder" else None
    return make_prompts(
        "random", n_prompts=n_prompts, lengths=LENGTHS, vocab_size=97, bos_token_id=bos
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", PARTS)
def test_the_variance_equals_brute_force(family, part):
    model = encoder_decoder(family)
    at = "heads" if family in ("t5", "bart") else "output"
    result = probe_variance(model, LENGTHS, layers=None, at=at, n_prompts=4, part=part)
    assert result.provenance.arguments["part"] == part
    x = gather(family, part, prompts_of(family, part, 4), LENGTHS, at)
    for name, values in brute.statistics(x, 0, 0).items():
        np.testing.assert_allclose(
            getattr(result, name), values, rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("family", ["t5", "bart", "mvp"])
@pytest.mark.parametrize("part", PARTS)
def test_rows_equal_brute_force(family, part):
    result = probe_attention(
        encoder_decoder(family), LENGTHS, layers=None, n_prompts=3, part=part, seed=0
    )
    prompts = prompts_of(family, part, 3)
    at = -1 if part == "decoder" else 0
    for column, length in enumerate(LENGTHS):
        tokens = [prompts.batch([index], length) for index in range(3)]
        weights = [plain(family, part, read(family, part, x)).weights for x in tokens]
        for layer in (0, 1):
            for head in range(4):
                rows = [brute.row_numbers(w[layer][0, head, at].numpy()) for w in weights]
                for name in ("entropy", "effective", "first", "n_keys", "squares"):
                    expected = np.mean([row[name] for row in rows])
                    got = getattr(result, name)[4 * layer + head, column]
                    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
        assert (result.n_keys[:, column] == length).all()
    if family != "mvp":
        assert np.isfinite(result.predicted_variance).all()


def test_one_pass_serves_the_decoder_alone():
    plans = {}
    for part in PARTS:
        asked = VarianceRequest(lengths=LENGTHS, n_prompts=2)
        plans[part] = start(VarianceProbe, encoder_decoder("t5"), asked, part=part).plan
    assert [plans[part].one_pass for part in PARTS] == [False, True, False]
    assert plans["cross"].flops > plans["encoder"].flops  # all of the encoder runs


@pytest.mark.parametrize(
    ("family", "options"),
    [("t5", {"query": "fixed"}), ("bart", {"query": "fixed"})]
    + [(family, {"chunk": 5}) for family in ("t5gemma", "switch_transformers", "bart")],
)
def test_branches_and_chunks_of_a_decoder_give_what_whole_prompts_give(family, options):
    model = encoder_decoder(family)
    given = {"query": "fixed"} if "query" in options else {}
    alone = [
        probe_variance(model, length, layers=1, n_prompts=32, part="decoder", **given)
        for length in (9, 24)
    ]
    run = start(
        VarianceProbe,
        model,
        VarianceRequest(lengths=(9, 24), layers=1, n_prompts=32, **options),
        part="decoder",
    )
    assert run.plan.one_pass
    together = run.execute()
    for column, result in enumerate(alone):
        got, expected = together.total_variance[:, column], result.total_variance[:, 0]
        np.testing.assert_allclose(got, expected, rtol=1e-4)


def saved(family, folder):
    encoder_decoder(family).float().save_pretrained(folder)
    encoder_decoder(family).double()
    make_tokenizer(adds_bos=False).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("part", PARTS)
def test_a_saved_model_is_loaded_and_planned_by_part(part, tmp_path):
    place = saved("bart", tmp_path / "bart")
    loaded = load_model(place, part=part)
    assert (loaded.part, loaded.model.part) == (part, part)
    assert loaded.learned_positions == 128
    assert (loaded.bos_token_id, loaded.adds_bos) == (
        (2, True) if part == "decoder" else (0, False)
    )
    asked = VarianceRequest(lengths=LENGTHS, n_prompts=2, layers=1)
    plans = plan_probe(VarianceProbe, place, asked, part=part), start(VarianceProbe, loaded, asked)
    first, second = (dataclasses.replace(plan, seconds=0) for plan in (plans[0], plans[1].plan))
    assert first == second
    assert probe_variance(place, "4,8", n_prompts=2, part=part, null="untrained").slope.shape == (
        1,
    )
    with pytest.raises(ValueError, match="beyond the 128 positions"):
        probe_variance(loaded, "256", n_prompts=2)


def test_the_command_line_names_the_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, run = saved("t5", tmp_path / "t5"), CliRunner().invoke
    few = ["--lengths", "4,8", "--n-prompts", "2"]
    planned = run(app, ["variance", place, "--part", "cross", "--dry-run", *few])
    assert "runs/variance-t5-4..8-part-cross" in planned.output
    assert run(app, ["check", place, "--part", "decoder", "--length", "16"]).exit_code == 0
    wrong = run(app, ["variance", place, "--part", "cross", "--position", "last", *few])
    assert "measured at the decoder's start token" in str(wrong.exception)


def test_what_needs_a_head_is_refused():
    with pytest.raises(
        UnsupportedModelError, match=r"T5Model is an encoder-decoder, .* the loss has"
    ):
        probe_loss(encoder_decoder("t5"), "4,8", prompts="random", n_prompts=4)
    with pytest.raises(ValueError, match="no encoder-decoder and has one attention"):
        probe_variance("builtin", "4,8", n_prompts=4, part="cross")


@pytest.mark.parametrize("family", ["t5", "marian"])
def test_a_checkpoint_is_loaded_with_its_head(family, tmp_path):
    """Marian's positions are in no checkpoint."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(encoder_decoder(family).config).eval()
    model.save_pretrained(tmp_path)
    inputs = read(family, "cross", torch.arange(3, 12)[None])
    loaded = load_model(tmp_path, part="cross", device="cpu")
    got, expected = loaded.model(inputs["input_ids"]).logits, model(**inputs).logits
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
