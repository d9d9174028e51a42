"""What is asked for is checked before a model is loaded, or when it is known."""

import dataclasses

import pytest
from families import tiny

from llmprobe import load_model, probe_remedies, probe_variance
from llmprobe.errors import UnsupportedModelError
from llmprobe.probes.remedy_request import RemedyRequest, parse_heads, trained_context
from llmprobe.probes.texts import BUILTIN_TEXT


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"remedies": "logn,prayer"}, "remedies: got 'prayer', accepted: logn, yarn"),
        ({"remedies": []}, "remedies: got none, accepted: logn"),
        ({"doses": "-1"}, "doses: got '-1', accepted: numbers from 0"),
        ({"doses": [0]}, r"doses: got \[0\], accepted: .*at least one above 0"),
        ({"doses": "some"}, "doses: got 'some', accepted"),
        ({"doses": "nan,1"}, "doses: got 'nan,1', accepted"),
        ({"heads": "first"}, "heads: got 'first', accepted: all, dispersing, or LAYER.HEAD"),
        ({"heads": "dispersing"}, 'variance: got none, but heads="dispersing" needs one'),
        ({"remedies": "restore"}, "variance: got none, but restore needs one"),
        ({"variance": "nowhere"}, "variance: got 'nowhere', which has no evidence"),
        ({"rope": "ntk"}, "rope: got 'ntk', accepted: dynamic, yarn, linear"),
        ({"trained": 1}, "trained: got 1, accepted: 2 or more"),
    ],
)
def test_what_no_model_can_be_asked_is_refused_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        RemedyRequest(text=BUILTIN_TEXT, **given).check()


def test_remedies_and_doses_may_be_text_or_numbers():
    asked = RemedyRequest(remedies=" logn, yarn,logn", doses="1, 0.5,0")
    assert asked.names() == ("logn", "yarn")
    assert asked.all_doses() == (0.0, 0.5, 1.0)
    assert RemedyRequest(doses=2).all_doses() == (2.0,)
    assert RemedyRequest(doses=[0, 1]).all_doses() == (0.0, 1.0)
    assert parse_heads("0.3, 2.1,0.4") == {0: [3, 4], 2: [1]}


@pytest.fixture(scope="module")
def loaded():
    return load_model("builtin")


@pytest.fixture(scope="module")
def options(loaded):
    return {"text": BUILTIN_TEXT, "n_prompts": 2, "tokenizer": loaded.tokenizer, "doses": "1"}


@pytest.fixture(scope="module")
def sources(loaded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    text = {"prompts": "text", "text": BUILTIN_TEXT, "n_prompts": 4}
    whole = {"at": "heads", "layers": "all", **text}
    probe_variance(loaded, "8,16", seed=1, output=folder / "right", **whole)
    probe_variance(loaded, "8,16", seed=1, at="heads", output=folder / "layer", **text)
    probe_variance(loaded, "8,16", seed=1, output=folder / "output", **text)
    probe_variance(loaded, "8,16", seed=0, output=folder / "same", **whole | {"n_prompts": 2})
    other = load_model("builtin", dtype="float64")
    probe_variance(other, "8,16", seed=1, output=folder / "other", **whole)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", "variance: got a result of another model"),
        ("same", "variance: got a result of the same prompts"),
        ("layer", "variance: got a result without layer 1"),
        ("output", 'variance: got a result of at="output"'),
    ],
)
def test_moments_must_be_of_this_model_and_of_other_prompts(
    name, message, loaded, options, sources
):
    with pytest.raises(ValueError, match=message):
        probe_remedies(loaded, "8,16", remedies="norm", variance=sources / name, **options)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("9.0", "heads: got 9.0, accepted: heads of layers 0"),
        ("0.6", "heads: got 0.6, accepted: heads of layers 0 "),
        ({0: [-1]}, "heads: got 0.-1, accepted"),
    ],
)
def test_heads_that_are_not_there_are_refused(heads, message, loaded, options):
    with pytest.raises(ValueError, match=message):
        probe_remedies(loaded, "8,16", remedies="temperature", heads=heads, **options)


def test_remedies_come_with_what_they_need(loaded, options, sources):
    result = probe_remedies(loaded, "8,16", variance=sources / "right", trained=8, **options)
    assert result.names() == [
        *("logn", "yarn", "infoscale", "adaptive", "temperature", "restore", "norm"),
    ]
    arguments = result.provenance.arguments
    assert arguments["variance"] == "right"
    assert len(arguments["variance_hash"]) == 64


def test_a_model_without_a_known_context_has_to_be_told(loaded):
    unknown = dataclasses.replace(loaded, context_length=None)
    with pytest.raises(ValueError, match="trained: got none, and the config of builtin"):
        trained_context(unknown, RemedyRequest())
    assert trained_context(unknown, RemedyRequest(trained=64)) == 64
    assert trained_context(loaded, RemedyRequest()) == 256


def test_a_model_whose_logits_cannot_be_scaled_is_refused_by_name():
    ask = {"prompts": "random", "n_prompts": 2, "doses": "1", "remedies": "temperature"}
    with pytest.raises(UnsupportedModelError, match=r"BloomAttention.*logits cannot be scaled"):
        probe_remedies(tiny("bloom"), "8,16", **ask)
