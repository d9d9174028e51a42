"""The ways to the same numbers: ours, plain transformers, and the peers as their manuals say.

A sweep takes a prompt (1, tokens), lengths and layers, and gives the attention outputs (layers,
lengths, hidden) after the output projection, at the last token of each prefix. llmprobe makes one
pass over the longest prefix; the others make a pass a length. "Early stop" leaves out what comes
after the deepest wanted layer, in the way that each tool has for it. Rows give, of the same tokens'
attention weights, entropy and the 16 largest: (layers, lengths, heads, 17).

Lengths may come in any order; the longest first fails soonest where memory does not do.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import llmprobe
from llmprobe import capture_attention, capture_rows, token_losses

N_TOP = 16
Way = Callable[[nn.Module, Tensor, Sequence[int], Sequence[int]], Tensor]


class Done(Exception):
    """Nothing more is wanted of this forward."""


def one_pass(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    positions = [n - 1 for n in lengths]
    with capture_attention(model, list(layers), positions=positions, stop=True) as captured:
        model(tokens[:, : max(lengths)], use_cache=False)
    return torch.stack([captured[layer][0] for layer in layers])


def hooks(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    """The ordinary call, and a hook for each layer."""
    return _hooked(model, lengths, layers, lambda n: model(tokens[:, :n]), stop=False)


def hooks_stop(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    """No logits, no cache, and the deepest hook ends the forward."""
    base = model.model
    return _hooked(
        model, lengths, layers, lambda n: base(tokens[:, :n], use_cache=False), stop=True
    )


def _hooked(
    model: nn.Module,
    lengths: Sequence[int],
    layers: Sequence[int],
    forward: Callable[[int], object],
    *,
    stop: bool,
) -> Tensor:
    kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}

    def keep(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # A clone: a slice would keep the whole output alive.
            kept[layer].append(output[0][0, -1].clone())
            if stop and layer == max(layers):
                raise Done

        return hook

    modules = {layer: model.model.layers[layer].self_attn for layer in layers}
    handles = [module.register_forward_hook(keep(n)) for n, module in modules.items()]
    try:
        for length in lengths:
            try:
                forward(length)
            except Done:
                continue
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([torch.stack(kept[layer]) for layer in layers])


def nnsight(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    traced, outputs = _traced(model), []
    for length in lengths:
        with traced.trace(tokens[:, :length]):
            kept = [traced.model.layers[n].self_attn.output[0][0, -1].clone() for n in layers]
            kept.save()
        outputs.append(torch.stack(kept))
    return torch.stack(outputs, dim=1)


def nnsight_stop(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    traced, outputs = _traced(model), []
    for length in lengths:
        with traced.trace(tokens[:, :length], use_cache=False) as tracer:
            kept = [traced.model.layers[n].self_attn.output[0][0, -1].clone() for n in layers]
            kept.save()
            tracer.stop()
        outputs.append(torch.stack(kept))
    return torch.stack(outputs, dim=1)


def transformer_lens(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    return _cached(model, tokens, lengths, layers)


def transformer_lens_stop(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    return _cached(model, tokens, lengths, layers, stop_at_layer=max(layers) + 1)


def _cached(
    model: nn.Module,
    tokens: Tensor,
    lengths: Sequence[int],
    layers: Sequence[int],
    **options: Any,
) -> Tensor:
    names = [f"blocks.{layer}.hook_attn_out" for layer in layers]
    outputs = []
    for length in lengths:
        _, kept = _bridge(model).run_with_cache(
            tokens[:, :length], names_filter=names, pos_slice=-1, **options
        )
        outputs.append(torch.stack([kept[name].flatten() for name in names]))
    return torch.stack(outputs, dim=1)


def rows(model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]) -> Tensor:
    positions = [n - 1 for n in lengths]
    with capture_rows(model, list(layers), positions=positions, k=N_TOP) as captured:
        model(tokens[:, : max(lengths)], use_cache=False, logits_to_keep=1)
    found = [captured[layer] for layer in layers]
    return torch.stack([torch.cat([x.entropy[..., None], x.top], dim=-1)[0] for x in found])


def whole_matrices(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    """transformers' own: `output_attentions`, for which attention must be eager."""
    positions = [n - 1 for n in lengths]
    model.set_attn_implementation("eager")
    output = model(
        tokens[:, : max(lengths)], use_cache=False, logits_to_keep=1, output_attentions=True
    )
    found = []
    for layer in layers:
        chosen = output.attentions[layer][0, :, positions].transpose(0, 1)
        entropy = torch.special.entr(chosen).sum(-1, keepdim=True)
        found.append(torch.cat([entropy, chosen.topk(N_TOP, dim=-1).values], dim=-1))
    return torch.stack(found)


def losses(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    """Nats of every token."""
    return token_losses(model, tokens)


def layers_alone(
    model: nn.Module, tokens: Tensor, lengths: Sequence[int], layers: Sequence[int]
) -> Tensor:
    """The hidden states of the last position, without logits."""
    return model.model(tokens, use_cache=False).last_hidden_state[:, -1]


WAYS: dict[str, Way] = {
    "llmprobe": one_pass,
    "hooks": hooks,
    "hooks, early stop": hooks_stop,
    "nnsight": nnsight,
    "nnsight, early stop": nnsight_stop,
    "TransformerLens": transformer_lens,
    "TransformerLens, early stop": transformer_lens_stop,
    "rows": rows,
    "output_attentions": whole_matrices,
    "losses": losses,
    "layers": layers_alone,
}
TOOLS = ("hooks", "nnsight", "TransformerLens")
"""The ways without llmprobe's; each has its early stop."""
_PACKAGES = {"nnsight": "nnsight", "TransformerLens": "transformer-lens"}


def missing(tool: str) -> str | None:
    """Why a tool cannot be measured here, if it cannot."""
    package = _PACKAGES.get(tool)
    try:
        if package:
            version(package)
    except PackageNotFoundError:
        return f"{tool} is not installed: pip install {package}"
    return None


# A tool wraps a model once; after that a sweep pays for the sweep alone.


@cache
def _traced(model: nn.Module) -> Any:
    from nnsight import NNsight

    return NNsight(model)


@cache
def _bridge(model: nn.Module) -> Any:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    # The bridge asks for a tokenizer, though tokens go in: any will do.
    folder = Path(llmprobe.__file__).parent / "capture" / "builtin"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), hf_model=model, tokenizer=tokenizer)
