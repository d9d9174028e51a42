"""What attention modules do with a few tokens is seen as it is."""

import torch
from devices import DEVICE
from encoders import encoder
from families import tiny

from llmprobe.capture.calls import can_listen
from llmprobe.capture.observing import first_tensor, observe

TOKENS = torch.arange(7, device=DEVICE)[None]


def look(model, modules):
    return observe(model, modules, filter(can_listen, modules), lambda: model(TOKENS))


def test_a_projection_inside_and_one_outside():
    llama, bert = tiny("llama"), encoder("bert")
    inside = llama.model.layers[0].self_attn
    seen = look(llama, [inside])[id(inside)]
    assert (seen.projection, seen.outside) == (inside.o_proj, False)
    outside = bert.encoder.layer[0].attention
    seen = look(bert, [outside.self])[id(outside.self)]
    assert (seen.projection, seen.outside) == (outside.output.dense, True)
    assert (seen.projection_size, seen.hidden_size, len(seen.calls)) == (32, 32, 1)


def test_heads_that_are_changed_on_the_way_have_no_projection():
    bert = encoder("bert")
    module = bert.encoder.layer[0].attention.self
    with module.register_forward_hook(lambda _, __, output: (output[0] * 2, *output[1:])):
        seen = look(bert, [module])[id(module)]
    assert not seen.outside


def test_no_hook_is_left():
    bert = encoder("bert")
    look(bert, [bert.encoder.layer[0].attention.self])
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in bert.modules())


def test_outputs_come_alone_or_first():
    x = torch.zeros(1)
    assert first_tensor(x) is x
    assert first_tensor((x, None)) is x
