"""What attention modules do with a few tokens: their calls, their output projection, their shapes.

The output projection is found by behavior: it is the last child with a weight matrix that an
attention module calls, and its input is the head outputs. Where a module ends in its heads (BERT),
it is the module outside that receives them as they are. A module with a single head may have an
`nn.Identity` in its place.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.capture.calls import AttentionCall, Owner, listening


@dataclass
class Seen:
    """What one attention module did when it ran."""

    projection: nn.Module | None = None
    projection_size: int = 0
    given: Tensor | None = None
    projected: Tensor | None = None
    passed_on: tuple[nn.Module, Tensor] | None = None
    hidden_size: int = 0
    last_only: bool = False
    returns_projected: bool = False
    adds_residual: bool = False
    outside: bool = False
    """Whether the projection lies outside of the module."""
    calls: list[AttentionCall] = field(default_factory=list)


def observe(
    model: nn.Module,
    attention: Sequence[nn.Module],
    listened: Iterable[nn.Module],
    run: Callable[[], object],
) -> dict[int, Seen]:
    """What each of the modules does while a few tokens run, by its id."""
    seen = {id(module): Seen() for module in attention}
    ended: list[tuple[Seen, Tensor]] = []  # modules that returned something else than a projection

    def listen(call: AttentionCall) -> None:
        seen[id(call.module)].calls.append(call)

    def watch(note: Seen) -> Any:
        def hook(child: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = _tensors(args, kwargs)
            if not owner.here() or not given or not isinstance(output, Tensor):
                return
            if _has_matrix(child):
                note.projection, note.projection_size = child, given[0].shape[-1]
                note.given, note.projected = given[0], output
            elif output.shape == given[0].shape and _same(output, given[0]):
                note.passed_on = child, output

        return hook

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not owner.here():
            return
        note, x = seen[id(module)], first_tensor(output)
        note.hidden_size = x.shape[-1]
        note.last_only = x.shape[:2] == (1, 1)
        inputs, projected = _tensors(args, kwargs), note.projected
        if projected is not None and projected.shape == x.shape:
            note.returns_projected = _same(x, projected)
            note.adds_residual = not note.returns_projected and any(
                given.shape == x.shape and _same(given + projected, x) for given in inputs
            )
            # Made from something other than the module's input: may be the changed projection.
            if not any(given is note.given for given in inputs):
                return
        if note.passed_on is not None and not (note.returns_projected or note.adds_residual):
            child, passed = note.passed_on
            if passed.shape == x.shape and _same(x, passed):
                note.projection, note.projection_size = child, x.shape[-1]
                note.returns_projected = True
        if not (note.returns_projected or note.adds_residual):
            ended.append((note, x))

    def receive(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = _tensors(args, kwargs)
        for note, heads in ended if owner.here() else ():
            if not note.outside and given and given[0] is heads:
                note.projection, note.projection_size = module, heads.shape[-1]
                note.outside = note.returns_projected = True

    with ExitStack() as stack:
        owner = Owner()
        stack.callback(owner.leave)
        for module in attention:
            # First: other hooks may change what the module returned.
            handle = module.register_forward_hook(after, with_kwargs=True, prepend=True)
            stack.enter_context(handle)
            for child in module.children():
                if _has_matrix(child) or not any(True for _ in child.parameters()):
                    hook = watch(seen[id(module)])
                    handle = child.register_forward_hook(hook, with_kwargs=True, prepend=True)
                    stack.enter_context(handle)
        inside = {id(part) for module in attention for part in module.modules()}
        for module in model.modules():
            own_matrix = any(x.ndim >= 2 for x in module.parameters(recurse=False))
            if own_matrix and id(module) not in inside:
                handle = module.register_forward_pre_hook(receive, with_kwargs=True)
                stack.enter_context(handle)
        stack.enter_context(listening(listened, listen))
        run()
    return seen


def ends_in_heads(module: nn.Module, run: Callable[[], object]) -> bool:
    """Whether what the module returns first is weights times values, head after head.

    Found by a run in which modules return their weights; the values are what a child computes.
    """
    children: list[Tensor] = []
    returned: list[Any] = []

    def keep(child: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            children.append(output)

    with ExitStack() as stack:
        for child in module.children():
            stack.enter_context(child.register_forward_hook(keep))
        stack.enter_context(module.register_forward_hook(lambda m, a, out: returned.append(out)))
        run()
    outputs = returned[-1] if returned and isinstance(returned[-1], tuple) else ()
    given = [x for x in outputs[1:] if isinstance(x, Tensor) and x.ndim == 4]
    if not given:
        return False
    weights, heads = given[-1], outputs[0]
    n_heads = weights.shape[1]
    for values in children:
        if values.shape == heads.shape and values.shape[-1] % n_heads == 0:
            by_head = values.unflatten(-1, (n_heads, -1)).transpose(1, 2)
            made = (weights @ by_head).transpose(1, 2).flatten(2)
            if (made - heads).abs().max() <= 1e-3 * heads.abs().max():
                return True
    return False


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in module.parameters())


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def first_tensor(output: Any) -> Tensor:
    """The attention output of a module that returns it alone or first in a tuple."""
    return output[0] if isinstance(output, tuple | list) else output
