"""A decoder's attention: the weights it shows are those it used."""

import pytest
import torch

from llmprobe.synthetic.decoder_attention import DECODER_SOFTMAXES, DecoderAttention
from llmprobe.synthetic.positions import POSITIONS
from llmprobe.synthetic.softmaxes import entropy_of

SEEDS, BATCH, N, WIDTH, HEADS = 2, 3, 18, 8, 2
PLACES = [name for name, part in POSITIONS.items() if part.place == "positions"]
PARTS = [{"positions": name} for name in PLACES]
PARTS += [{"softmax": name} for name in DECODER_SOFTMAXES]
PARTS += [{"softmax": "differential", "positions": "fire", "temperature": "adaptive"}]

every_part = pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "+".join(parts.values()))


def build(parts):
    attention = DecoderAttention(WIDTH, HEADS, 3, seeds=SEEDS, layer_idx=1, parts=parts).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in attention.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return attention


def inputs():
    return torch.randn(
        SEEDS * BATCH, N, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


@every_part
def test_eager_weights_times_values_are_the_output(parts):
    attention, x = build(parts), inputs()
    output, _ = attention(x)
    attention.config._attn_implementation = "eager"
    again, weights = attention(x)
    torch.testing.assert_close(again, output)
    heads = HEADS // attention.softmax.maps
    assert weights.shape == (SEEDS * BATCH, heads, N, N)
    assert (weights.triu(1) == 0).all()
    values = attention.v_proj(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    pooled = attention.softmax.norm((weights @ values).flatten(0, 2)).view(values.shape)
    expected = attention.o_proj(pooled.transpose(1, 2).flatten(2))
    torch.testing.assert_close(again, expected)


@every_part
def test_weights_are_a_distribution_where_the_paper_has_one(parts):
    attention = build(parts)
    attention.config._attn_implementation = "eager"
    _, weights = attention(inputs())
    if parts.get("softmax") in ("differential", "normalized"):
        assert entropy_of(weights).isnan().any()
        return
    assert (weights >= 0).all()
    sums, linear = weights.sum(dim=-1), "linear" in parts.get("softmax", "")
    if linear:  # all features of a query may be 0
        sums = sums[sums > 0]
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert entropy_of(weights).isfinite().all() or linear


def test_differential_attention_has_half_the_heads_and_values_twice_as_wide():
    attention = build({"softmax": "differential"})
    assert (attention.num_heads, attention.maps) == (1, 2)
    assert attention.softmax.norm.size == 6
    assert attention.softmax.start == pytest.approx(0.8 - 0.6 * 2.718281828 ** (-0.3))
