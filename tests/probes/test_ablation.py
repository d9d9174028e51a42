"""Without a class of heads: the change that plain hooks show, paired, by position."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from devices import DEVICE
from families import tiny

from llmprobe import capture_attention, load_model, probe_ablation, probe_variance
from llmprobe.probes.ablation import AblationRequest, make_classes

LENGTHS = (8, 16, 32)
SMALL = {"n_prompts": 4, "n_controls": 1}


@pytest.fixture(scope="module")
def loaded():
    return load_model("builtin")


@pytest.fixture(scope="module")
def result(loaded):
    return probe_ablation(
        loaded, LENGTHS, heads={"early": {0: [0, 1]}, "late": "4.5"}, text="builtin", **SMALL
    )


def losses(loaded, tokens, heads=None, means=None, at=slice(None)) -> torch.Tensor:
    """By an ordinary forward; heads give their means by a plain hook on the projection.

    Only at some positions, if these are given.
    """
    model, handles = loaded.model, []
    for layer, some in (heads or {}).items():
        projection = model.model.layers[layer].self_attn.o_proj

        def replace(module, args, layer=layer, some=some):
            x = args[0].clone().unflatten(-1, means[layer].shape)
            for head in some:
                x[:, at, head] = means[layer][head]
            return (x.flatten(-2),)

        handles.append(projection.register_forward_pre_hook(replace))
    try:
        with torch.inference_mode():
            logits = model(tokens).logits
    finally:
        for handle in handles:
            handle.remove()
    targets = tokens[:, 1:]
    return -logits[:, :-1].log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def test_changes_equal_plain_hooks(loaded, result):
    from llmprobe.probes.ablation import AblationProbe

    asked = AblationRequest(
        lengths=LENGTHS, heads={"early": {0: [0, 1]}, "late": "4.5"}, text="builtin", **SMALL
    )
    probe = AblationProbe(loaded, asked)
    tokens = probe.ready.prompts.batch(range(4), 32).to(DEVICE)
    means = means_of(loaded, tokens)
    before = losses(loaded, tokens)
    for number, one in enumerate(probe.classes):
        some = {layer: list(heads) for layer, heads in one.heads.items()}
        change = losses(loaded, tokens, some, means) - before
        parts = [change[:, :7], change[:, 7:15], change[:, 15:]]
        wanted = [float(part.mean()) for part in parts]
        np.testing.assert_allclose(result.change[number], wanted, atol=2e-5)


def means_of(loaded, tokens) -> dict[int, torch.Tensor]:
    with torch.inference_mode(), capture_attention(loaded, at="heads") as captured:
        loaded.model(tokens)
    return {layer: captured[layer].mean(dim=(0, 1)) for layer in captured}


@pytest.mark.parametrize("given", [{}, {"chunk": 5}, {"batch_tokens": 32}])
def test_targets_lose_heads_that_their_context_keeps(loaded, given):
    """The same last tokens given contexts of every length, against plain hooks at these tokens."""
    from llmprobe.probes.ablation import AblationProbe

    heads = {"early": {0: [0, 1]}, "late": "4.5"}
    own = {"heads": heads, "same_targets": 6, "text": "builtin", "n_controls": 0, "n_prompts": 4}
    result = probe_ablation(loaded, (7, 16, 32), **own, **given)
    probe = AblationProbe(loaded, AblationRequest(lengths=(7, 16, 32), **own, **given))
    tokens = probe.ready.prompts.batch(range(4), 32).to(DEVICE)
    means = means_of(loaded, tokens)
    assert result.n_tokens.tolist() == [6, 6, 6]
    for column, length in enumerate(result.lengths):
        ending = torch.cat([tokens[:, :1], tokens[:, 32 - length + 1 :]], dim=1)
        before = losses(loaded, ending)[:, -6:]
        np.testing.assert_allclose(result.baseline[column], float(before.mean()), atol=2e-5)
        for number, some in enumerate(({0: [0, 1]}, {4: [5]})):
            after = losses(loaded, ending, some, means, at=slice(-7, -1))[:, -6:]
            wanted = float((after - before).mean())
            np.testing.assert_allclose(result.change[number, column], wanted, atol=2e-5)
    assert "of the last 6 in prompts of 32 tokens" in result.reading()
    assert "--same-targets" not in (result.command() or "")  # classes are from Python


@pytest.mark.parametrize("family", ["jamba", "glm_moe_dsa"])
def test_targets_need_a_model_that_agrees_with_itself_over_a_cache(family):
    given = {"heads": "1.0", "prompts": "random", "n_prompts": 4, "bos": "no"}
    with pytest.raises(ValueError, match=r"same_targets: got 6, but .* over a KV cache"):
        probe_ablation(tiny(family), (8, 40), same_targets=6, **given)


def test_the_command_of_targets_names_them(loaded):
    result = probe_ablation(
        loaded, "8,16", heads="0.0", same_targets=4, text="builtin", n_prompts=4, n_controls=0
    )
    assert "--same-targets 4" in result.command()


def test_it_matters_that_heads_are_gone(result):
    assert np.abs(result.change).max() > 1e-3
    assert np.isfinite(result.baseline).all()


def test_a_control_has_as_many_heads_of_the_same_layers(loaded):
    layers = probe_layers(loaded)
    asked = AblationRequest(lengths=LENGTHS, heads={"a": {0: [0, 1, 2, 3], 2: [5]}}, n_controls=3)
    first, *controls = make_classes(asked, layers)
    assert [one.control_of for one in controls] == [0, 0, 0]
    for one in controls:
        assert {n: len(heads) for n, heads in one.heads.items()} == {0: 4, 2: 1}
        assert 5 not in one.heads[2]
        assert {4, 5} <= set(one.heads[0])  # the two others, then some of its own
    assert len({str(one) for one in controls}) > 1
    assert str(first) == "0.0,0.1,0.2,0.3,2.5"


def probe_layers(loaded):
    from llmprobe import attention_layers

    return attention_layers(loaded)


def test_every_head_by_itself(loaded):
    asked = AblationRequest(lengths=LENGTHS, heads="each")
    classes = make_classes(asked, probe_layers(loaded))
    assert len(classes) == 30
    assert str(classes[7]) == classes[7].name == "1.1"


def test_classes_by_label(loaded, tmp_path):
    folder = tmp_path / "variance"
    variance = probe_variance(
        loaded, "16..128", layers="0,1", at="heads", n_prompts=32, query="fixed", output=folder
    )
    asked = AblationRequest(lengths=LENGTHS, variance=folder, n_controls=0)
    named = {one.name: str(one) for one in make_classes(asked, probe_layers(loaded))}
    labels = variance.decay_frame()
    for name, text in named.items():
        rows = labels[labels.label == name]
        pairs = zip(rows.layer, rows["head"], strict=True)
        assert text == ",".join(f"{layer}.{head}" for layer, head in pairs)
    assert named


def test_labels_of_another_model_are_refused(loaded, tmp_path):
    """Its heads have the same numbers, and other labels."""
    other = copy.deepcopy(loaded)
    other.model.model.layers[0].self_attn.v_proj.weight.data[0, 0] += 1
    given = {"at": "heads", "n_prompts": 32, "query": "fixed"}
    saved = probe_variance(other, "16..128", output=tmp_path / "run", **given)
    replace(saved, provenance=replace(saved.provenance, model="other")).save(tmp_path / "saved")
    for name in ("run", "saved"):
        with pytest.raises(ValueError, match="variance: got a result of another model"):
            probe_ablation(loaded, LENGTHS, variance=tmp_path / name, text="builtin", **SMALL)
    result = probe_ablation(other, LENGTHS, variance=tmp_path / "run", text="builtin", **SMALL)
    assert result.classes


def test_prompts_that_are_too_short_are_counted_in_one_line(loaded):
    prompts = [[3] * 40, [4] * 9, *([n] * 40 for n in (5, 6, 7))]
    with pytest.raises(ValueError, match="1 of 4 prompts are shorter"):
        probe_ablation(loaded, LENGTHS, heads="0.0", prompts=prompts, **SMALL)


def test_it_resumes_and_joins_like_every_probe(loaded, tmp_path):
    given = {"heads": "0.0,1.2", "text": "builtin", "n_controls": 0, "lengths": "8,16"}
    whole = probe_ablation(loaded, n_prompts=6, output=tmp_path / "whole", **given)
    probe_ablation(loaded, n_prompts=4, output=tmp_path / "part", **given)
    grown = probe_ablation(loaded, n_prompts=6, output=tmp_path / "part", **given)
    np.testing.assert_allclose(grown.change, whole.change, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "but no variance result"),
        (
            {"heads": {"a": "0.0", "a, random 1": "0.1"}},
            "'a, random 1' is also the name of a control",
        ),
        ({"heads": {1: "0.0", "1": "0.1"}}, "got a name twice"),
        ({"heads": "each", "variance": "x"}, "leave one of them out"),
        ({"heads": "0.9"}, r"got 0\.9"),
        ({"heads": "7.0"}, r"got 7\.0"),
        ({"heads": "dispersing"}, r"LAYER\.HEAD"),
        ({"heads": {"a": {}}}, "without heads"),
        ({"heads": "0.0", "n_controls": -1}, "n_controls"),
        ({"heads": "0.0", "n_prompts": 3}, "4 or more"),
    ],
)
def test_bad_classes_are_refused_in_one_line(loaded, given, words):
    with pytest.raises(ValueError, match=words):
        probe_ablation(loaded, "8,16", text="builtin", **{"n_prompts": 4, **given})
