"""Attention outputs of any Hugging Face causal language model, in linear memory.

    with capture_attention(model, layers=[0, -1], positions=-1) as captured:
        model(**batch)
    captured[0]     # (batch, 1, hidden)

1. `layers` and `positions` choose what to capture; a position counts from each prompt's own first
   or last token, wherever the padding is.
2. `at="heads"` gives the heads' outputs before the output projection.
3. `stop=True` ends the forward after the deepest chosen layer; the model's call then returns None.
   With few positions, the deepest layer computes only their queries.
4. `into=function` receives (layer, tensor) in the hook, and nothing is kept.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.capture.calls import can_listen, listening
from llmprobe.capture.discovery import AttentionLayer, LayerChoice
from llmprobe.capture.loading import AnyModel
from llmprobe.capture.observing import first_tensor
from llmprobe.capture.session import Positions, Session
from llmprobe.capture.single_positions import FewPositions
from llmprobe.capture.wrapping import wrap_method
from llmprobe.errors import CaptureError

AT = ("output", "heads")


def capture_attention(
    model: AnyModel,
    layers: LayerChoice = None,
    *,
    part: str | None = None,
    positions: Positions = None,
    at: str = "output",
    stop: bool = False,
    into: Callable[[int, Tensor], object] | None = None,
    device: torch.device | str | None = None,
) -> "AttentionCapture":
    """A context manager that captures the outputs of attention modules.

    `model`: a module, a `LoadedModel`, or a name (hub id, folder, .gguf file, "builtin"). A name is
    loaded with the defaults of `load_model`, and the capture keeps the module as `model`:

        with capture_attention("builtin", "0,-1") as captured:
            captured.model(tokens)

    `layers`: None or "all", layer numbers (negative from the end), text such as "0,4,8..12", or a
    slice.
    `part`: of an encoder-decoder "encoder" (its default), "decoder" or "cross"; call the whole
    model or the capture's `model`, which takes the prompts' tokens alone.
    `positions`: None for all (padding included), a number or a list; negative from the end.
    `at`: "output" for the module's output (batch, positions, hidden); "heads" for the heads before
    the output projection (batch, positions, heads, head size).
    `stop`: end each forward after the deepest chosen layer; the call returns None.
    `into`: called as into(layer, tensor) in the hook; then nothing is kept.
    `device`: where to keep the tensors; None leaves them where they are.

    Several forwards append along the batch. Leaving the block checks that every hook has fired.
    Only forwards of the thread (and asyncio task) that entered the block are captured; others run
    undisturbed. Positions count the tokens of one forward. Inside `model.generate(...)` every new
    token is a forward, so only positions=-1 and None are accepted there, and no stop=True.
    """
    if at not in AT:
        raise ValueError(f"at: got {at!r}, accepted: {', '.join(AT)}")
    return AttentionCapture(
        model,
        layers=layers,
        part=part,
        positions=positions,
        at=at,
        stop=stop,
        into=into,
        device=device,
    )


class AttentionCapture(Session[Tensor]):
    """What `capture_attention` gives: a mapping from layer number to tensor, filled by forwards."""

    def __init__(
        self,
        model: AnyModel,
        *,
        layers: LayerChoice,
        part: str | None,
        positions: Positions,
        at: str,
        stop: bool,
        into: Callable[[int, Tensor], object] | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(model, layers=layers, part=part, positions=positions, stop=stop, into=into)
        self.at = at
        self.device = device
        self._few: FewPositions | None = None
        self._narrow = False

    @property
    def narrow(self) -> bool:
        """True if the deepest layer computes only the chosen positions in this forward."""
        return self._narrow

    def may_narrow(self, length: int) -> bool:
        """True if the positions are few enough for prompts of this length."""
        return self.positions is not None and 2 * len(self.positions) <= length

    def attach(self, stack: ExitStack) -> None:
        for layer in self.layers:
            if self.at == "output":
                source = self.model.get_submodule(layer.output)
                register = partial(source.register_forward_hook, self._output_hook(layer))
            else:
                source, hook = self.projection(layer), self._heads_hook(layer)
                register = partial(source.register_forward_pre_hook, hook, with_kwargs=True)
            self.own(stack, register)
        narrow = self.stop and self.positions is not None and self.deepest.interface
        if narrow and can_listen(self.module(self.deepest)):
            self._attach_narrow(stack)

    def _attach_narrow(self, stack: ExitStack) -> None:
        """Make the deepest layer compute only the chosen positions."""
        module = self.module(self.deepest)
        self._few = few = FewPositions(module)

        def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self.here():
                return forward(*args, **kwargs)
            self._narrow = False
            given = few.arguments(*args, **kwargs)
            # Other hooks on this layer need the whole output.
            if given is not None and self.alone():
                batch, length, _ = given["hidden_states"].shape
                index = self.index(batch, length, given["hidden_states"].device)
                if self.may_narrow(length) and few.suits(forward, given):
                    self._narrow = True
                    return few.run(forward, given, index)
            return forward(*args, **kwargs)

        wrap_method(module, around, stack)
        stack.enter_context(listening([module], few.listen))

    def _output_hook(self, layer: AttentionLayer) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.here():
                self._keep(layer, self._wanted(layer, first_tensor(output)))

        return hook

    def _heads_hook(self, layer: AttentionLayer) -> Callable[[nn.Module, Any, Any], None]:
        # Without kwargs while another thread attaches or removes it.
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            if not self.here() or (self._few is not None and self._few.trying):
                return
            x = args[0] if args else next(iter(kwargs.values()))
            heads = self._wanted(layer, x).unflatten(-1, (layer.n_heads, layer.head_size))
            self._keep(layer, heads)

        return hook

    def _wanted(self, layer: AttentionLayer, x: Tensor) -> Tensor:
        narrowed = self._narrow and layer is self.deepest
        return x.detach().clone() if narrowed else self.take(layer, x)

    def _keep(self, layer: AttentionLayer, x: Tensor) -> None:
        self.see(layer, x if self.device is None else x.to(self.device))

    def join(self, layer: int, parts: list[Tensor]) -> Tensor:
        if len({part.shape[1:] for part in parts}) > 1:
            raise CaptureError(
                f"layer {layer} was captured at lengths "
                f"{', '.join(str(part.shape[1]) for part in parts)}; give `positions` to join them"
            )
        return torch.cat(parts)

    def __repr__(self) -> str:
        shapes = {n: tuple(self[n].shape) if parts else None for n, parts in self._kept.items()}
        return f"AttentionCapture(at={self.at!r}, {shapes})"
