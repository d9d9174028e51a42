"""Remedies are measured as they are defined, and a planted loss is found and repaired."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from devices import DEVICE
from families import no_positions, state, tiny
from torch.nn import functional

from llmprobe import (
    RemedyResult,
    edit_attention,
    load_model,
    load_result,
    merge_results,
    probe_loss,
    probe_remedies,
    probe_variance,
    restore,
    token_losses,
)
from llmprobe.capture.discovery import attention_layers
from llmprobe.capture.loading import as_loaded
from llmprobe.capture.positions import scaled_positions
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.remedies import RemedyProbe
from llmprobe.probes.remedy_request import RemedyRequest
from llmprobe.probes.texts import BUILTIN_TEXT, read_text
from llmprobe.probes.treatments import Case, treatments

LENGTHS = "32,64,128,256"
WEAK = {1: (0, 2, 4), 2: (1, 3), 3: (0, 5)}
"""Heads that are attenuated beyond 64 keys."""


def attenuated(loaded, heads):
    """The same model with heads that fall as 1 / n beyond 64 keys."""
    model = copy.deepcopy(loaded.model).float()
    for layer in attention_layers(model):
        if layer.layer not in heads:
            continue
        mask = torch.zeros(layer.n_heads, dtype=torch.bool, device=DEVICE)
        mask[list(heads[layer.layer])] = True

        def weaken(module, args, mask=mask, layer=layer):
            x = args[0].unflatten(-1, (layer.n_heads, -1))
            n = torch.arange(1, x.shape[1] + 1, device=DEVICE)[None, :, None, None]
            gain = torch.where(mask[:, None], (n / 64).clamp(min=1) ** -1.0, 1.0)
            return ((x * gain).flatten(-2).to(args[0].dtype),)

        model.get_submodule(layer.projection).register_forward_pre_hook(weaken)
    return model


@pytest.fixture(scope="module")
def loaded():
    return load_model("builtin")


@pytest.fixture(scope="module")
def options(loaded):
    return {
        "prompts": "text",
        "text": BUILTIN_TEXT,
        "n_prompts": 12,
        "tokenizer": loaded.tokenizer,
    }


@pytest.fixture(scope="module")
def weak(loaded):
    return attenuated(loaded, WEAK)


@pytest.fixture(scope="module")
def source(weak, options, tmp_path_factory):
    """Moments of other prompts."""
    folder = tmp_path_factory.mktemp("variance") / "run"
    more = options | {"n_prompts": 48}
    probe_variance(weak, LENGTHS, at="heads", layers="all", seed=1, output=folder, **more)
    return folder


@pytest.fixture(scope="module")
def planted(weak, source, options):
    heads = {layer: list(heads) for layer, heads in WEAK.items()}
    return probe_remedies(
        weak,
        LENGTHS,
        remedies="restore,temperature",
        doses="0.5,1",
        measures="loss,slopes",
        heads=heads,
        variance=source,
        trained=64,
        **options,
    )


def test_a_planted_loss_is_repaired_by_restoring_and_not_by_the_shams(planted, loaded, options):
    at = planted.best("restore")
    assert planted.verdict("restore") == "helps"
    assert planted.doses[at] == 1
    assert planted.change_high[0, at, -1] < 0
    shams = [
        *planted.treatments("restore", "shuffled"),
        *planted.treatments("restore", "norm kept"),
    ]
    assert (planted.change_high[0, shams, -1] > 0).all()
    assert planted.versus_sham_high[0, at, -1] < 0
    healthy = probe_loss(loaded, LENGTHS, **options).loss[-1]
    lost = planted.baseline[0, -1] - healthy
    assert lost > 0.05
    assert planted.change[0, at, -1] == pytest.approx(-lost, rel=0.5)


def test_nothing_changes_where_a_remedy_does_not_act(planted):
    inside = planted.change[0, planted.treatments("restore"), :2]
    assert (inside == 0).all()
    assert np.isnan(planted.p[0, planted.treatments("restore"), :2]).all()
    assert (planted.change[0, planted.treatments("temperature")] != 0).all()


def test_slopes_of_restored_heads_are_flat(planted):
    frame = planted.slope_frame().set_index(["remedy", "layer", "head"])
    for layer, heads in WEAK.items():
        for head in heads:
            before, after = (frame.loc[(name, layer, head)] for name in ("untreated", "restore"))
            assert before.slope < -0.3
            assert after.slope > before.slope + 0.3
            assert after.slope_change == pytest.approx(after.slope - before.slope)
            assert after.slope_change_low < after.slope_change < after.slope_change_high


@pytest.mark.parametrize("by", ["moments", "slopes"])
def test_restored_heads_keep_their_variance_on_fresh_prompts(by, tmp_path):
    """Where attention is nearly uniform, heads fall as N^-0.5; given back, they do not fall."""
    model = no_positions()
    ask = {"lengths": "16..256", "at": "heads"}
    before = probe_variance(model, seed=1, n_prompts=512, output=tmp_path / "run", **ask)
    edit = restore(tmp_path / "run" if by == "moments" else before)
    with edit_attention(model, outputs=edit):
        after = [probe_variance(model, seed=seed, n_prompts=64, **ask) for seed in range(2, 8)]
    assert (before.slope_high < -0.4).all()
    holds_zero = [(x.slope_low <= 0) & (x.slope_high >= 0) for x in after]
    assert np.mean(holds_zero) > 0.85  # of 95 % intervals of 4 heads, 6 times
    assert np.abs(np.mean([x.slope for x in after], axis=0)).max() < 0.03


@pytest.mark.thorough
def test_an_edited_layer_changes_the_next_and_a_second_measurement_restores_what_is_left(tmp_path):
    model, ask = tiny("llama"), {"lengths": (16, 64, 256), "at": "heads", "layers": "all"}
    folders = [tmp_path / "heads", tmp_path / "left"]
    before = probe_variance(model, seed=1, n_prompts=512, output=folders[0], **ask)
    assert (before.slope_high < -0.2).all()

    def fresh(*sources):
        with edit_attention(model, outputs=restore(*sources)):
            found = [probe_variance(model, seed=seed, n_prompts=48, **ask) for seed in range(2, 6)]
        holds_zero = np.mean([(x.slope_low <= 0) & (x.slope_high >= 0) for x in found], axis=0)
        slopes = np.abs(np.mean([x.slope for x in found], axis=0))
        return [
            (holds_zero[layer].mean(), slopes[layer].mean()) for layer in np.split(np.arange(8), 2)
        ]

    (first, _), (second, slope) = fresh(folders[0])
    assert first > 0.85
    assert second < 0.7
    assert slope > 0.04
    with edit_attention(model, outputs=restore(folders[0])):
        probe_variance(model, seed=1, n_prompts=512, output=folders[1], **ask)
    for holds_zero, slope in fresh(*folders):
        assert holds_zero > 0.85  # of 95 % intervals of 4 heads, 4 times
        assert slope < 0.02


def test_what_is_left_is_measured_inside_the_edit(tmp_path):
    model, ask = no_positions(), {"at": "heads", "n_prompts": 4}
    folders = [tmp_path / name for name in "abc"]
    result = probe_variance(model, (8, 16), seed=1, output=folders[0], **ask)
    probe_variance(model, (8, 16), seed=2, output=folders[1], **ask)
    with edit_attention(model, outputs=restore(folders[0])):
        probe_variance(model, (8, 32), seed=1, output=folders[2], **ask)
    with pytest.raises(ValueError, match="which was measured before the last edit; make it inside"):
        restore(*folders[:2])
    with pytest.raises(ValueError, match="of other layers or lengths, accepted: those of"):
        restore(folders[0], folders[2])
    with pytest.raises(ValueError, match="got a result and folders, accepted: folders only"):
        restore(result, folders[1])


# ---------------------------------------------------------------- numbers


def brute_losses(model, tokens, lengths):
    """Nats per token between lengths, from all logits at once: (prompts, lengths)."""
    logits = model(tokens.to(DEVICE), use_cache=False).logits.double().cpu()
    nats = functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    ).numpy()
    parts = itertools.pairwise([1, *lengths])
    return np.stack([nats[:, a - 1 : b - 1].mean(axis=1) for a, b in parts], axis=1)


@pytest.mark.parametrize("chunk", [None, 24])
def test_changes_equal_brute_force(loaded, options, chunk):
    lengths, names = (16, 32, 96), ("logn", "temperature", "adaptive")
    result = probe_remedies(
        loaded,
        lengths,
        remedies=names,
        doses=[1.5],
        trained=24,
        chunk=chunk,
        seed=3,
        **options | {"n_prompts": 4},
    )
    prompts = make_prompts(
        "text",
        n_prompts=4,
        lengths=lengths,
        seed=3,
        tokenizer=loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        bos_token_id=loaded.bos_token_id if loaded.adds_bos else None,
        text=read_text(BUILTIN_TEXT),
    )
    tokens, layers = prompts.batch(range(4), 96), attention_layers(loaded.model)
    heads = {layer.layer: tuple(range(layer.n_heads)) for layer in layers}
    case = Case(model=loaded.model, layers=layers, heads=heads, trained=24, longest=96, seed=3)
    with torch.inference_mode():
        before = brute_losses(loaded.model, tokens, lengths)
        np.testing.assert_allclose(result.baseline[0], before.mean(axis=0), atol=1e-5)
        for number, treatment in enumerate(treatments(names, [1.5])):
            with treatment.edit(case):
                change = brute_losses(loaded.model, tokens, lengths) - before
            np.testing.assert_allclose(result.change[0, number], change.mean(axis=0), atol=1e-5)
            last = change[:, -1]
            ends = scipy.stats.t.interval(0.95, 3, last.mean(), scipy.stats.sem(last))
            got = result.change_low[0, number, -1], result.change_high[0, number, -1]
            assert got == pytest.approx(ends, rel=1e-3)


@pytest.mark.thorough
def test_key_tokens_are_those_that_the_untreated_model_needs_far_context_for(loaded, options):
    result = probe_remedies(
        loaded,
        "8,128",
        remedies="temperature",
        doses=1,
        same_targets=7,
        **options | {"n_prompts": 24, "prompts": "text"},
    )
    assert result.measures == ("loss", "key_loss", "dictionary", "repeat")
    assert np.isnan(result.change[1, :, 0]).all()
    assert 0 <= result.baseline[1, -1] < 2
    assert np.isfinite(result.change[1, :, -1]).all()


def columns_equal(a, b, **tolerance):
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            np.testing.assert_allclose(x, y, **{"rtol": 0, **tolerance}, err_msg=field.name)


@pytest.mark.thorough
def test_runs_resume_grow_and_merge(loaded, options, tmp_path):
    ask = options | {"remedies": "temperature", "doses": "1", "lengths": "16,48"}
    ask |= {"n_prompts": 6}
    whole = probe_remedies(loaded, output=tmp_path / "whole", **ask)
    probe_remedies(loaded, output=tmp_path / "grown", **ask | {"n_prompts": 4})
    # Batches of other sizes: processors round their products differently.
    grown = probe_remedies(loaded, output=tmp_path / "grown", **ask)
    columns_equal(grown, whole, rtol=1e-5, atol=1e-6)
    again = load_result(tmp_path / "whole")
    assert isinstance(again, RemedyResult)
    columns_equal(again, whole)
    probe_remedies(loaded, output=tmp_path / "other", seed=1, **ask)
    both = merge_results([tmp_path / "whole", tmp_path / "other"], tmp_path / "both")
    assert both.n_prompts[0].tolist() == [12, 12]
    probe_remedies(loaded, output=tmp_path / "long", **ask | {"lengths": "16,64", "seed": 2})
    with pytest.raises(ValueError, match="same lengths"):
        merge_results([tmp_path / "whole", tmp_path / "long"], tmp_path / "no")


@pytest.mark.thorough
def test_positions_can_be_repaired_first(loaded, options):
    ask = options | {"n_prompts": 4, "remedies": "temperature", "doses": "1", "trained": 32}
    plain, repaired = (
        probe_remedies(loaded, "16,128", rope=rope, **ask) for rope in (None, "linear:4")
    )
    assert repaired.provenance.arguments["rope"] == "linear:4"
    assert not np.allclose(plain.baseline[0], repaired.baseline[0])
    with scaled_positions(loaded.model, "linear", 4.0):
        expected = probe_loss(loaded, "16,128", **options | {"n_prompts": 4})
    np.testing.assert_allclose(repaired.baseline[0], expected.loss, atol=1e-6)


def test_the_model_is_as_before(loaded, options):
    before = state(loaded.model)
    ask = options | {"n_prompts": 2, "remedies": "logn,adaptive", "doses": "1", "rope": "yarn"}
    probe_remedies(loaded, "16,32", trained=16, **ask)
    assert state(loaded.model) == before


def test_prompts_inside_the_trained_context_are_noted(loaded, options):
    ask = options | {"n_prompts": 2, "remedies": "logn,temperature", "doses": "1"}
    result = probe_remedies(loaded, "16,32", **ask)
    assert any("no prompt is longer than the trained context of 256" in x for x in result.warnings)
    assert "logn changes nothing" in result.reading()


def test_what_a_remedy_leaves_alone_runs_once_for_all(loaded, options, tmp_path, monkeypatch):
    """Beginnings inside the trained context are shared; whole prompts give the same numbers."""
    folder = tmp_path / "variance"
    given = options | {"n_prompts": 8}
    probe_variance(loaded, "16,32,64", at="heads", layers="all", seed=1, output=folder, **given)
    ask = given | {
        "remedies": "logn,floor,infoscale,restore,norm,temperature",
        "doses": "1",
        "trained": 40,
        "variance": folder,
        "measures": "loss",
        "n_prompts": 4,
    }
    lengths = []
    own = RemedyProbe._ending

    def seen(self, model, tokens, n, untreated):
        again = own(self, model, tokens, n, untreated)
        lengths.append((n, again is not None))
        return again

    monkeypatch.setattr(RemedyProbe, "_ending", seen)
    shared = probe_remedies(loaded, "16,32,64", **ask)
    assert set(lengths) == {(24, True), (32, True)}  # beyond 40 tokens; beyond the moments at 32
    monkeypatch.setattr(RemedyProbe, "_ending", lambda *_: None)
    whole = probe_remedies(loaded, "16,32,64", **ask)
    np.testing.assert_allclose(shared.change, whole.change, atol=2e-6)
    assert np.abs(whole.change[0, :, -1]).min() > 1e-5


def test_a_model_that_counts_in_its_own_way_runs_whole(weak, options):
    """Its hooks count positions of a call, so a prompt over a cache is another one."""
    probe = RemedyProbe(
        as_loaded(weak, tokenizer=options["tokenizer"]),
        RemedyRequest(
            lengths="32,128",
            remedies="logn",
            doses="1",
            trained=64,
            measures="loss",
            **{name: options[name] for name in ("prompts", "text", "n_prompts")},
        ),
    )
    probe.may_chunk = lambda: True
    tokens = probe.ready.prompts.batch([0], 128).to(DEVICE)
    with torch.inference_mode():
        whole = token_losses(weak, tokens)
        assert probe._ending(weak, tokens, 64, whole) is None
        assert probe._ending(weak, tokens[:, :64], 8, whole[:, :63]) is not None


def test_what_a_remedy_does_not_reach_changes_by_nothing_at_all():
    """A window hides that a prompt is longer than L, and rounding over a cache is no change."""
    model = tiny("mistral")  # all of its layers see 4 tokens
    assert model.config.sliding_window <= 16
    ask = {"remedies": "logn,infoscale", "doses": "1", "trained": 16, "measures": "loss"}
    result = probe_remedies(model, "8,32", prompts="random", n_prompts=4, bos="no", **ask)
    shown = np.array(result.arms) == "remedy"
    assert (result.change[0, shown] == 0).all()
    assert "changes nothing up to 32 tokens" in result.reading()


def test_positions_that_depend_on_the_whole_length_are_never_cut(loaded, options):
    given = {name: options[name] for name in ("prompts", "text", "n_prompts")}
    asked = {"lengths": "32,64", "remedies": "logn", "doses": "1", "measures": "loss", **given}
    for rope, may in (("dynamic", False), ("yarn:2", True)):
        assert RemedyProbe(loaded, RemedyRequest(rope=rope, **asked)).may_chunk() is may


def test_measures_can_be_left_out(loaded, options):
    ask = options | {"n_prompts": 4, "remedies": "temperature", "doses": "1"}
    result = probe_remedies(loaded, "16,32", measures="loss,repeat", **ask)
    assert result.measures == ("loss", "key_loss", "repeat")
    assert not len(result.slope_of)
    assert result.slope_frame().empty
    with pytest.raises(ValueError, match="slopes: the probe measured none"):
        result.plot("slopes")
    with pytest.raises(ValueError, match="measures: got 'speed', accepted: loss, dictionary"):
        probe_remedies(loaded, "16,32", measures="speed", **ask)
