"""A causal decoder for tasks with several right answers, from the papers' minimal model to a GPT.

    network = Decoder(32, seeds=(0, 1, 2))          # one layer, one head, attention only
    network = Decoder(61, "mlp+prenorm", width=512, heads=8, layers=8)   # a GPT without positions
    logits = network(tokens).logits                 # (3 * batch, length) to (..., length, vocab)

Every parameter has a first axis for the seeds, as in `layers`. The baseline has no positions, no
norm and no MLP: with one layer and one head it is the minimal model of arXiv 2510.08341, whose
logits are B[last] + Σ a(last, i) D[i]; `complement` has its closed form.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from llmprobe.synthetic.decoder_attention import DECODER_SOFTMAXES, DecoderAttention, weights_seen
from llmprobe.synthetic.layers import (
    Drop,
    SeedEmbedding,
    SeedLinear,
    SeedMlp,
    SeedNetwork,
    SeedNorm,
    by_seed,
    check_heads,
    no_drop,
)
from llmprobe.synthetic.positions import POSITIONS, Fire, Relative, complete_places, spread
from llmprobe.synthetic.softmaxes import check_temperature
from llmprobe.synthetic.variants import AVERAGES, BASELINE, Part, parse_variant

DECODER_PARTS = {
    "mlp": Part("mlp", "an MLP of four times the width after each attention"),
    "prenorm": Part("norm", "LayerNorm before each attention and MLP, and before the logits"),
    "postnorm": Part("norm", "LayerNorm after each attention and MLP, on the residual stream"),
    "subnorm": Part("norm", "LayerNorm on what each attention and MLP adds to the stream"),
    "nonorm": Part("norm", "no norm, where the task's baseline has one"),
    **POSITIONS,
    **DECODER_SOFTMAXES,
    "calibrated": Part(
        "bias", "kept on the lines along which a first training attends", staged=True
    ),
    "adaptive": Part("temperature", "a colder softmax where it is spread thin, at test time only"),
    "dropout": Part(
        "dropout", "dropout on embeddings, attention weights and what is added, while training"
    ),
    **AVERAGES,
}


class Predicted(NamedTuple):
    """What a decoder makes of a batch."""

    logits: Tensor
    """(batch, length, vocab): after each token, which comes next."""
    places: Tensor | None = None
    """(batch, length, context + 1): logits of its place, of a variant with `predicted`."""


def parse_decoder_variant(name: str, baseline: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variant's parts by their place, in a task's baseline where one is given."""
    own = complete_places(name, parse_variant(name, DECODER_PARTS))
    parts = {**(baseline or {}), **own}
    check_temperature(name, parts)
    if parts.get("softmax", "").startswith("linear") and parts.get("positions") in (
        "alibi",
        "fire",
        "relative",
    ):
        raise ValueError(
            f"variants: {name!r} has no logits that {parts['positions']} could be added to"
        )
    if "bias" in parts and "softmax" in parts:
        raise ValueError(f"variants: {name!r} calibrates {parts['softmax']}; accepted: the softmax")
    return parts


def needs_context(parts: Mapping[str, str]) -> bool:
    """Whether a network with these parts has a table of positions."""
    return "learned" in parts.values() or bool({"drawn", "bias"} & set(parts))


def check_decoder_heads(width: int, heads: int, parts: Mapping[str, str]) -> None:
    """Refuse heads that the width or a part cannot be divided into."""
    check_heads(width, heads, rotary=parts.get("positions") in ("rotary", "xpos"))
    if parts.get("softmax") == "differential" and heads % 2:
        raise ValueError(
            f"heads: got {heads}, accepted for differential: an even number, of which it makes half"
        )


class DecoderLayer(nn.Module):
    """An attention and, where the variant has one, an MLP, each added to what came in."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        value_size: int,
        seeds: int,
        parts: dict[str, str],
        **place: Any,
    ) -> None:
        """`place`: the other arguments of the attention."""
        super().__init__()
        self.attention = DecoderAttention(
            width, heads, value_size, seeds=seeds, parts=parts, **place
        )
        self.mlp = SeedMlp(seeds, width, 4 * width, width) if "mlp" in parts else None
        self.place = parts.get("norm", "nonorm")
        places = ("attention_norm", "mlp_norm")[: 2 if self.mlp else 1]
        norms = places if self.place != "nonorm" else ()
        self.norms = nn.ModuleDict({n: SeedNorm(seeds, width, gain=True, bias=True) for n in norms})

    def forward(self, x: Tensor, drop: Drop = no_drop, places: Tensor | None = None) -> Tensor:
        x = self._add(x, lambda y: self.attention(y, drop, places)[0], "attention_norm", drop)
        return x if self.mlp is None else self._add(x, self.mlp, "mlp_norm", drop)

    def _add(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: str, drop: Drop) -> Tensor:
        if norm not in self.norms:
            return x + drop(branch(x))
        if self.place == "prenorm":
            return x + drop(branch(self.norms[norm](x)))
        if self.place == "subnorm":
            return x + drop(self.norms[norm](branch(x)))
        return cast(Tensor, self.norms[norm](x + drop(branch(x))))


class Decoder(SeedNetwork):
    """A decoder for each of some seeds; see the module's docstring."""

    _can_record_outputs: ClassVar = {"attentions": DecoderAttention}

    def __init__(
        self,
        vocab: int,
        variant: str = BASELINE,
        *,
        seeds: Sequence[int] = (0,),
        width: int = 64,
        heads: int = 1,
        layers: int = 1,
        value_size: int | None = None,
        context: int | None = None,
    ) -> None:
        """`value_size`: of a head, width / heads if not given; `context`: how many places there
        are for learned and drawn positions."""
        super().__init__(
            seeds,
            vocab=vocab,
            variant=variant,
            width=width,
            heads=heads,
            layers=layers,
            value_size=value_size,
            context=context,
        )
        parts = parse_decoder_variant(variant)
        check_decoder_heads(width, heads, parts)
        size = width // heads if value_size is None else value_size
        for name, value in {"seeds": len(seeds), "layers": layers, "value_size": size}.items():
            if value < 1:
                raise ValueError(f"{name}: got {value}, accepted: 1 or more")
        n = len(seeds)
        self.variant, self.parts, self.context = variant, parts, context
        self.embedding = SeedEmbedding(n, vocab, width)
        learned, predicted = (name in parts.values() for name in ("learned", "predicted"))
        if context is None and needs_context(parts):
            raise ValueError(
                "learned and drawn positions and calibrated attention need a context, the most "
                "tokens given"
            )
        n_places = (context or 0) + ("drawn" in parts)  # drawn ones begin with 1
        self.positions = SeedEmbedding(n, n_places, width) if learned else None
        self.layers = nn.ModuleList(
            DecoderLayer(
                width,
                heads,
                value_size=size,
                seeds=n,
                layer_idx=index,
                parts=parts,
                context=context or 0,
            )
            for index in range(layers)
        )
        final = parts.get("norm") == "prenorm"
        self.norm = SeedNorm(n, width, gain=True, bias=True) if final else nn.Identity()
        self.unembedding = SeedLinear(n, width, vocab, bias=False)
        self.placing = SeedLinear(n, width, n_places, bias=False) if predicted else None
        self.heads = self.layers[0].attention.num_heads
        self.draw_weights()

    def get_input_embeddings(self) -> SeedEmbedding:
        return self.embedding

    @property
    def pairs(self) -> int:
        """Numbers that a forward keeps for each pair of tokens of a sequence, about."""
        own = {"fire": Fire.HIDDEN, "relative": Relative.NUMBERS}
        hidden = own.get(self.parts.get("positions", ""), 0)
        return max(hidden, self.heads if {"softmax", "temperature"} & set(self.parts) else 0)

    def forward(
        self,
        input_ids: Tensor,
        use_cache: bool = False,
        drop: Drop = no_drop,
        places: Tensor | None = None,
    ) -> Predicted:
        """Tokens (batch, length), one seed's after another's; `drop` is training's dropout.

        `places`: their positions, (batch, length) or (seeds, length); 0, 1, 2, ... if None.
        """
        if len(input_ids) % len(self.seeds):
            raise ValueError(
                f"input_ids: got {len(input_ids)} sequences, accepted: as many for each of the "
                f"{len(self.seeds)} seeds; member(0) is one seed"
            )
        vocab = self.embedding.num_embeddings
        # On another device the question would hold up the queue.
        if input_ids.device.type == "cpu" and not 0 <= input_ids.min() <= input_ids.max() < vocab:
            raise ValueError(f"input_ids: got tokens that are not of the {vocab}, 0 to {vocab - 1}")
        places = self._checked(places, input_ids)
        x = self.embedding(input_ids)
        if self.positions is not None:
            x = x + spread(self.positions(places), len(x))
        x = drop(x)
        for layer in self.layers:
            x = layer(x, drop, places)
        x = self.norm(x)
        placed = None if self.placing is None else self.placing(x)
        return Predicted(self.unembedding(x), placed)

    def _checked(self, places: Tensor | None, input_ids: Tensor) -> Tensor:
        """The places, (batch, n) or (seeds, n), where there are as many as a table has."""
        batch, n = input_ids.shape
        most = None if self.positions is None else self.positions.num_embeddings
        if places is None:
            if most is not None and n > most:
                raise ValueError(
                    f"input_ids: got {n} tokens, accepted: up to the {most} learned positions"
                )
            return torch.arange(n, device=input_ids.device).expand(len(self.seeds), n)
        if places.shape not in ((batch, n), (len(self.seeds), n)):
            raise ValueError(
                f"places: got {tuple(places.shape)}, accepted: {(batch, n)}, or one row for each "
                f"of the {len(self.seeds)} seeds"
            )
        if most is not None and places.device.type == "cpu" and not 0 <= places.max() < most:
            raise ValueError(
                f"places: got {int(places.max())}, accepted: less than the {most} learned positions"
            )
        return places

    def begin_with(self, first: "Decoder", tokens: Tensor, places: Tensor | None) -> None:
        """Take what staged parts need from a trained decoder without them, on some tokens.

        A swapped softmax begins with all weights that both have, a calibrated bias with what the
        last layer attends to.
        """
        if self.parts.get("softmax") == "linear-swap":
            self.load_state_dict(first.state_dict(), strict=False)
        if "bias" in self.parts:
            with torch.no_grad(), weights_seen(first) as rows:
                first(tokens, places=places)
            mean = by_seed(rows[-1], len(self.seeds)).mean(dim=1)
            for layer in self.layers:
                layer.attention.calibrated.calibrate(mean)
