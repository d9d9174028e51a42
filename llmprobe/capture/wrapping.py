"""Methods of modules, wrapped by several users who may leave in any order, and what is refused."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any

from torch import nn

from llmprobe.capture.calls import lock
from llmprobe.errors import UnsupportedModelError


class _Layers:
    """A method of a module with layers around it, which come and go in any order."""

    def __init__(self, module: nn.Module, name: str) -> None:
        method: Callable[..., Any] = getattr(module, name)
        self.module, self.name, self.arounds = module, name, ()
        self.own = module.__dict__.get(name)  # accelerate puts one there

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            inner = method
            for around in self.arounds:
                inner = partial(around, inner)
            return inner(*args, **kwargs)

        self.call = call
        module.__dict__[name] = call

    def remove(self, around: Callable[..., Any]) -> None:
        with lock:
            self.arounds = tuple(x for x in self.arounds if x is not around)
            if self.arounds or _layers.get((id(self.module), self.name)) is not self:
                return
            del _layers[id(self.module), self.name]
            # Someone else may have wrapped the method meanwhile; then ours only calls through.
            if self.module.__dict__.get(self.name) is self.call:
                if self.own is None:
                    del self.module.__dict__[self.name]
                else:
                    self.module.__dict__[self.name] = self.own

    arounds: tuple[Callable[..., Any], ...]


_layers: dict[tuple[int, str], _Layers] = {}


def wrap_method(
    module: nn.Module, around: Callable[..., Any], stack: ExitStack, *, name: str = "forward"
) -> None:
    """Replace a module's method by around(method, *args, **kwargs) until the stack closes."""
    around = partial(around)  # one of its own: the same function may be there twice
    with lock:
        layers = _layers.get((id(module), name))
        if layers is None or module.__dict__.get(name) is not layers.call:
            layers = _layers[id(module), name] = _Layers(module, name)
        layers.arounds = (*layers.arounds, around)
    stack.callback(layers.remove, around)


def check_plain(model: nn.Module) -> None:
    """Refuse wrappers that do not run the module's own forward, and models without weights."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedModelError(
            f"{type(model).__name__} runs copies of the model; give model.module, and call it"
        )
    if "_orig_mod" in model._modules or model._compiled_call_impl is not None:
        raise UnsupportedModelError(
            "the model is compiled, and compiled code skips hooks; give the model as it was before "
            "torch.compile (compiled._orig_mod), and call that"
        )
    weights = next(model.parameters(), None)
    if weights is None or weights.device.type != "meta":
        return
    if not any(hasattr(module, "_hf_hook") for module in model.modules()):
        raise UnsupportedModelError(
            "the model is on the meta device, which has shapes but no numbers; load its weights"
        )
