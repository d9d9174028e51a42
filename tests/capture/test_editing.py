"""Edits do what they say on every family, leave nothing behind, and are seen by captures."""

import asyncio
import copy
import threading
from contextlib import contextmanager

import pytest
import torch
from devices import DEVICE
from families import FAMILIES, batch, no_positions, state, tiny
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from llmprobe import (
    CaptureError,
    UnsupportedModelError,
    attention_layers,
    capture_attention,
    capture_rows,
    edit_attention,
    probe_variance,
)
from llmprobe.capture.calls import own_eager
from llmprobe.capture.digests import digest_model
from llmprobe.capture.edits import (
    LengthMoments,
    ablate,
    restore_moments,
    scale_logits,
    scale_outputs,
)

CAPPED = {"gemma2"}
"""Families whose logits are not in proportion to the query."""
WITHOUT_INTERFACE = {"bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "xglm", "glm_moe_dsa"}
"""Families that compute attention themselves, or choose keys for each query."""
SCALABLE = sorted(set(FAMILIES) - CAPPED - WITHOUT_INTERFACE)
SOME = ["llama", "gpt2", "mistral", "gpt_oss", "bloom"]


def logits(model, inputs, **more):
    return model(**inputs, use_cache=False, **more).logits


def eager_with_doubled_logits(module, query, key, value, attention_mask, scaling=None, **options):
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return own_eager(module)(
        module, query, key, value, attention_mask, scaling=2 * scaling, **options
    )


AttentionInterface.register("doubled", eager_with_doubled_logits)
AttentionMaskInterface.register("doubled", ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@contextmanager
def attention_function(model, name):
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = name
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


@pytest.mark.parametrize("family", SCALABLE)
def test_doubled_logits_equal_those_of_an_eager_reference(family):
    model, inputs = tiny(family), batch(family, (9, 12), "left")
    real = inputs["attention_mask"].bool()
    plain = logits(model, inputs)
    with attention_function(tiny(family, "eager"), "doubled"):
        expected = logits(tiny(family, "eager"), inputs)
    with edit_attention(model, queries=scale_logits(2.0)):
        got = logits(model, inputs)
    torch.testing.assert_close(got[real], expected[real], atol=1e-5, rtol=1e-5)
    assert (plain[real] - expected[real]).abs().max() > 1e-3


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_without_a_dose_the_logits_are_equal_to_the_bit(family):
    model, inputs = tiny(family), batch(family, (9, 12), "left")
    before = logits(model, inputs)
    edits = [{"outputs": scale_outputs(1.0)}, {"outputs": lambda layer, x: x * x.new_ones(4, 1)}]
    if family in SCALABLE:
        edits += [
            {"queries": scale_logits(1.0)},
            {"queries": scale_logits(lambda n: n.double() ** 0.0)},
            {"outputs": scale_outputs(lambda n: n.double() ** 0.0)},
        ]
    for edit in edits:
        with edit_attention(model, **edit):
            assert torch.equal(logits(model, inputs), before)
    assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_ablating_a_head_is_zeroing_its_columns_of_the_projection(family):
    model, inputs = tiny(family), batch(family, (9, 12))
    number = attention_layers(model)[-1].layer
    other = copy.deepcopy(model)
    layer = attention_layers(other)[-1]
    weight = other.get_submodule(layer.projection).weight
    columns = slice(2 * layer.head_size, 3 * layer.head_size)
    if weight.shape[0] == weight.shape[1] and "Conv1D" in str(
        type(other.get_submodule(layer.projection))
    ):
        weight.data[columns] = 0  # Conv1D has the transposed matrix
    else:
        weight.data[:, columns] = 0
    expected, plain = logits(other, inputs), logits(model, inputs)
    for head in (2, -2, [2]):
        with edit_attention(model, number, heads=head, outputs=ablate()):
            torch.testing.assert_close(logits(model, inputs), expected, atol=1e-5, rtol=1e-5)
    assert (plain - expected).abs().max() > 1e-4


def colder(n):
    return 1 + 0.3 * n.double().log()


def louder(n):
    return (n.double() / 4) ** 0.7


@contextmanager
def edited(model):
    kinds = {"outputs": scale_outputs(louder)}
    if all(layer.interface for layer in attention_layers(model)):
        kinds["queries"] = scale_logits(colder)
    with edit_attention(model, **kinds):
        yield


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_are_edited_as_they_are_alone(family, side):
    model, lengths = tiny(family), (5, 9, 12)
    with edited(model):
        padded = batch(family, lengths, side)
        together = logits(model, padded)
        for row in range(len(lengths)):
            real = padded["attention_mask"][row].bool()
            alone = {"input_ids": padded["input_ids"][row, real][None]}
            expected = logits(model, alone)[0]
            torch.testing.assert_close(together[row, real], expected, atol=1e-4, rtol=1e-4)
    assert (logits(model, padded) - together).abs().max() > 1e-2


@pytest.mark.parametrize("family", SOME)
def test_chunks_and_caches_are_edited_like_the_whole(family):
    model, tokens = tiny(family), batch(family, (12,))["input_ids"]
    with edited(model):
        whole, parts, cache = logits(model, {"input_ids": tokens}), [], None
        for part in tokens.split([5, 4, 1, 2], dim=1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_generation_is_edited_at_every_token(family):
    model, inputs = tiny(family), batch(family, (6, 9), "left")
    options = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}
    mask = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with edited(model):
        got = model.generate(**mask, **options)[1, 9:]
        tokens = inputs["input_ids"][1:]
        for new in got.tolist():
            out = logits(model, {"input_ids": tokens})[0, -1].argmax()
            assert int(out) == new
            tokens = torch.cat([tokens, tokens.new_tensor([[new]])], dim=1)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "llama4_text"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_n_is_how_many_keys_a_query_sees(family, attention):
    if (family, attention) == ("gpt_oss", "sdpa"):
        attention = None
    model, inputs = tiny(family, attention), batch(family, (6, 9), "left")
    seen = {}

    def note(call, n):
        seen[call.layer] = n.expand(2, -1, -1)[:, 0]

    with (
        edit_attention(model, queries=note),
        capture_rows(model, positions=list(range(6)), weights=True) as rows,
    ):
        logits(model, inputs)
    for layer in rows:
        counted = (rows[layer].weights > 0).sum(-1)[..., 0]
        expected = torch.stack([seen[layer][0, 3:], seen[layer][1, :6]])
        assert torch.equal(counted, expected)


def test_every_other_head_and_layer_stays_as_it_is():
    model, inputs = tiny("llama"), batch("llama", (12,))
    with capture_attention(model, at="heads") as before:
        logits(model, inputs)
    for edit in ({"queries": scale_logits(3.0)}, {"outputs": scale_outputs(3.0)}):
        with (
            edit_attention(model, 1, heads=[0, 3], **edit),
            capture_attention(model, at="heads") as after,
        ):
            logits(model, inputs)
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1][:, :, [1, 2]], after[1][:, :, [1, 2]])
        assert not torch.isclose(before[1][:, 1:, [0, 3]], after[1][:, 1:, [0, 3]]).all(-1).any()


def test_heads_can_be_chosen_by_layer():
    model, inputs = tiny("llama"), batch("llama", (12,))
    with (
        edit_attention(model, heads={0: 1, 1: [2, 3]}, outputs=ablate()) as edit,
        capture_attention(model, at="heads") as captured,
    ):
        logits(model, inputs)
    zero = [[int(head) for head in (captured[n] == 0).all(-1).all(1)[0].nonzero()] for n in (0, 1)]
    assert zero == [[1], [2, 3]]
    assert edit.heads == {0: (1,), 1: (2, 3)}


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_captures_see_all_edits_wherever_they_were_entered(family):
    model, inputs = tiny(family), batch(family, (12,))
    with capture_attention(model, at="heads") as plain:
        logits(model, inputs)
    with (
        capture_attention(model, 0, at="heads") as outside,
        edit_attention(model, 0, outputs=scale_outputs(2.0)),
        capture_attention(model, 0, at="heads") as between,
        edit_attention(model, 0, outputs=lambda layer, x: x + 1),
    ):
        logits(model, inputs)
    for captured in (outside, between):
        torch.testing.assert_close(captured[0], 2 * plain[0] + 1)


def test_hooks_of_the_user_come_before_edits():
    model, inputs = copy.deepcopy(tiny("llama")), batch("llama", (12,))
    projection = model.get_submodule(attention_layers(model)[0].projection)
    with capture_attention(model, at="heads") as plain:
        logits(model, inputs)
    projection.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    with (
        capture_attention(model, 0, at="heads") as captured,
        edit_attention(model, 0, outputs=scale_outputs(2.0)),
    ):
        logits(model, inputs)
    torch.testing.assert_close(captured[0], 2 * (plain[0] + 1))


def test_edits_of_queries_multiply_and_rows_show_them():
    model, inputs = tiny("llama"), batch("llama", (12,))
    with (
        edit_attention(model, queries=scale_logits(3.0)),
        capture_rows(model, 0, weights=True) as nested,
        edit_attention(model, queries=scale_logits(0.5)),
    ):
        logits(model, inputs)
    with capture_rows(model, 0, weights=True) as plain:
        logits(model, inputs)
    expected = plain[0].weights.log().mul(1.5).softmax(-1)
    torch.testing.assert_close(nested[0].weights, expected)


@pytest.mark.parametrize("kind", ["queries", "outputs"])
def test_a_capture_that_stops_early_sees_the_edit(kind):
    model, inputs = tiny("llama"), batch("llama", (9, 12), "left")
    edit = {kind: (scale_logits if kind == "queries" else scale_outputs)(lambda n: n * 0.5)}
    with edit_attention(model, **edit):
        with capture_attention(model, 1, positions=-1) as whole:
            logits(model, inputs)
        with capture_attention(model, 1, positions=-1, stop=True) as narrow:
            assert logits_or_none(model, inputs) is None
    torch.testing.assert_close(narrow[1], whole[1], atol=1e-6, rtol=1e-5)


def logits_or_none(model, inputs):
    return model(**inputs, use_cache=False)


def test_a_learned_sink_keeps_its_logit():
    """Only the keys' logits are scaled, so a colder softmax moves weight to or from the sink."""
    model, inputs = tiny("gpt_oss"), batch("gpt_oss", (12,))
    with capture_rows(model, 0, weights=True) as plain:
        logits(model, inputs)
    with (
        edit_attention(model, queries=scale_logits(2.0)),
        capture_rows(model, 0, weights=True) as colder_rows,
    ):
        logits(model, inputs)
    before, after = (x.weights.double() for x in (plain[0], colder_rows[0]))
    sink = 1 - before.sum(-1, keepdim=True)
    seen = before > 0
    # With the sink as the unit, a key's odds are e^(logit - sink): only the first is doubled.
    bias = model.model.layers[0].self_attn.sinks.double()[None, None, :, None]
    logit = (before / sink).log() + bias
    expected = torch.cat([2 * logit, bias.expand(*logit.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(after[seen], expected[seen], atol=1e-5, rtol=1e-4)


def test_half_precision_is_scaled_in_float32():
    model, inputs = copy.deepcopy(tiny("llama")).bfloat16(), batch("llama", (12,))
    with edit_attention(model, queries=scale_logits(1.001)):
        got = logits(model, inputs)
    assert got.dtype == torch.bfloat16


# ---------------------------------------------------------------- nothing is left behind


@pytest.mark.parametrize("family", ["llama", "bloom", "gemma2"])
def test_nothing_is_left_behind_even_after_an_error(family):
    model, inputs = copy.deepcopy(tiny(family)), batch(family, (6,))
    attention_layers(model)
    before, digest = state(model), digest_model(model)

    def fail(layer, x):
        raise ZeroDivisionError

    with edit_attention(model, outputs=scale_outputs(2.0)):
        logits(model, inputs)
    with pytest.raises(ZeroDivisionError), edit_attention(model, outputs=fail):
        logits(model, inputs)
    assert state(model) == before
    assert digest_model(model) == digest


def test_edits_leave_in_any_order():
    model, inputs = tiny("llama"), batch("llama", (6,))
    before = logits(model, inputs)
    first, second = (edit_attention(model, queries=scale_logits(x)) for x in (2.0, 0.5))
    first.__enter__()
    second.__enter__()
    torch.testing.assert_close(logits(model, inputs), before)
    first.__exit__(None, None, None)
    assert not torch.allclose(logits(model, inputs), before)
    second.__exit__(None, None, None)
    assert torch.equal(logits(model, inputs), before)


def test_other_threads_and_tasks_run_the_model_as_it_is():
    model, inputs = tiny("llama"), batch("llama", (6,))
    before, got = logits(model, inputs), {}

    async def look():
        got["task"] = logits(model, inputs)

    async def main():
        # A task copies the context of the block that makes it, so it is made outside of it.
        entered, left = asyncio.Event(), asyncio.Event()

        async def other():
            await entered.wait()
            await look()
            left.set()

        task = asyncio.create_task(other())
        with edit_attention(model, queries=scale_logits(2.0), outputs=scale_outputs(2.0)):
            logits(model, inputs)
            entered.set()
            await left.wait()
        await task

    with edit_attention(model, queries=scale_logits(2.0), outputs=scale_outputs(2.0)):
        thread = threading.Thread(target=lambda: got.update(thread=logits(model, inputs)))
        thread.start()
        thread.join()
        assert not torch.allclose(logits(model, inputs), before)
    asyncio.run(main())
    assert torch.equal(got["thread"], before)
    assert torch.equal(got["task"], before)


# ---------------------------------------------------------------- digests


MOMENTS = LengthMoments((2, 8), torch.ones(2, 4, 8), 2 * torch.ones(2, 4, 8))


def test_an_edit_is_part_of_the_models_digest():
    model = no_positions()
    inputs = {"input_ids": torch.arange(8, device=DEVICE)[None]}
    found = {"plain": digest_model(model)}
    threshold = {"low": 4, "high": 5}
    edits = {
        "doubled": {"queries": scale_logits(2.0)},
        "tripled": {"queries": scale_logits(3.0)},
        "outputs": {"outputs": scale_outputs(2.0)},
        "one head": {"outputs": scale_outputs(2.0), "heads": 1},
        "mean": {"outputs": ablate({0: torch.ones(4, 8)})},
        "other mean": {"outputs": ablate({0: torch.zeros(4, 8)})},
        "restored": {"outputs": restore_moments({0: MOMENTS}, reference=4)},
        "restored wider": {
            "outputs": restore_moments({0: MOMENTS._replace(std=MOMENTS.mean)}, reference=4)
        },
        **{
            name: {"queries": scale_logits(lambda n, at=at: 1 + (n > at))}
            for name, at in threshold.items()
        },
    }
    for name, edit in edits.items():
        with edit_attention(model, **edit):
            logits(model, inputs)
            found[name] = digest_model(model)
            assert digest_model(model) == found[name]
            elsewhere = []
            thread = threading.Thread(target=lambda to=elsewhere: to.append(digest_model(model)))
            thread.start()
            thread.join()
            assert elsewhere == [found["plain"]]
    assert len(set(found.values())) == len(found)
    assert digest_model(model) == found["plain"]


def test_a_probe_inside_an_edit_is_not_answered_by_an_unedited_result(tmp_path):
    model = no_positions()
    options = {"lengths": "8,16", "n_prompts": 4, "at": "heads", "output": tmp_path / "run"}
    plain = probe_variance(model, **options)
    with (
        edit_attention(model, outputs=scale_outputs(2.0)),
        pytest.raises(Exception, match="model_hash"),
    ):
        probe_variance(model, **options)
    with edit_attention(model, outputs=scale_outputs(2.0)):
        edited_result = probe_variance(model, **options | {"output": tmp_path / "other"})
    assert edited_result.std_median == pytest.approx(2 * plain.std_median)
    assert any("attention was edited" in note for note in edited_result.warnings)
    assert not any("edited" in note for note in plain.warnings)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("family", sorted(WITHOUT_INTERFACE))
def test_families_without_the_interface_are_refused_by_name(family):
    model = tiny(family)
    with pytest.raises(UnsupportedModelError, match=r"Attention.*edit outputs"):
        edit_attention(model, queries=scale_logits(2.0))


def test_a_soft_cap_is_refused_by_name_but_outputs_can_be_edited():
    model, inputs = tiny("gemma2"), batch("gemma2", (6,))
    with (
        pytest.raises(UnsupportedModelError, match=r"Gemma2Attention.*soft cap"),
        edit_attention(model, queries=scale_logits(2.0)),
    ):
        logits(model, inputs)
    with edit_attention(model, outputs=scale_outputs(2.0)):
        logits(model, inputs)


def test_a_bias_in_the_mask_is_refused():
    model, inputs = tiny("llama", "eager"), batch("llama", (6,))
    mask = torch.zeros(1, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -3e38).to(DEVICE)
    for bias, fine in ((0.0, True), (0.5, False)):
        biased = {"input_ids": inputs["input_ids"], "attention_mask": mask + bias * (mask == 0)}
        with edit_attention(model, queries=scale_logits(2.0)):
            if fine:
                logits(model, biased)
            else:
                with pytest.raises(UnsupportedModelError, match=r"LlamaAttention.*bias"):
                    logits(model, biased)


def test_windows_without_the_interface_have_no_n():
    with pytest.raises(UnsupportedModelError, match=r"GPTNeo.*sliding"):
        edit_attention(tiny("gpt_neo"), outputs=scale_outputs(lambda n: n))
    edit_attention(tiny("gpt_neo"), outputs=scale_outputs(2.0))


def test_layers_of_heads_may_be_counted_from_the_end():
    model, inputs = tiny("llama"), batch("llama", (6,))
    found = []
    for number in (-1, 1):
        with edit_attention(model, heads={number: [0]}, outputs=ablate()) as edit:
            found.append(model(**inputs).logits)
        assert edit.heads == {1: (0,)}
    assert torch.equal(*found)
    assert not torch.equal(found[0], model(**inputs).logits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "queries, outputs: got neither"),
        ({"heads": 4, "outputs": ablate()}, "heads: got 4, accepted: 0 to 3, the heads of layer 0"),
        ({"heads": "0", "outputs": ablate()}, "heads: got '0', accepted"),
        ({"heads": {7: 0}, "outputs": ablate()}, "layers: no attention layer 7"),
        (
            {"layers": 0, "heads": {1: 0}, "outputs": ablate()},
            "heads of layer 1, which is not among",
        ),
        ({"heads": {1: 0, -1: 1}, "outputs": ablate()}, "heads: got a layer twice"),
        ({"heads": {1: []}, "outputs": ablate()}, "which changes none"),
        ({"heads": [], "outputs": ablate()}, "which changes none"),
        ({"layers": 9, "outputs": ablate()}, "layers: no attention layer 9"),
    ],
)
def test_wrong_arguments_are_refused_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        edit_attention(tiny("llama"), **given)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"queries": lambda call, n: torch.ones(7)}, r"queries: .* shape \(1, 1, 7\)"),
        ({"outputs": lambda layer, x: x[:, :, :2]}, r"outputs: .* shape \(1, 6, 2, 8\)"),
        ({"outputs": ablate({1: torch.zeros(4, 8)})}, "means: got none of layer 0"),
    ],
)
def test_wrong_values_are_refused_when_they_come(edit, message):
    model, inputs = tiny("llama"), batch("llama", (6,))
    with pytest.raises(ValueError, match=message), edit_attention(model, **edit):
        logits(model, inputs)


def test_a_block_without_a_forward_is_an_error_and_so_is_entering_twice():
    edit = edit_attention(tiny("llama"), outputs=ablate())
    with pytest.raises(CaptureError, match="no edited layer ran"), edit:
        pass
    with pytest.raises(CaptureError, match="active already"), edit, edit:
        pass
