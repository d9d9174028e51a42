"""What functions and objects hold, as plain values: the part of a digest that is no tensor.

    held = Held({id(module): name for name, module in model.named_modules()}, of_tensor, of_module)
    held.facts(hook)

A hook may take what it does from anywhere: its arguments, its closure, an object, global names, a
module such as a sparse autoencoder. All of them are read. Nothing here depends on where objects lie
in memory: other processes must come to the same.
"""

import argparse
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LOADERS = ("llmprobe", "transformers", "accelerate")
"""Their hooks watch a model or move its weights."""
_LIBRARIES = {*sys.stdlib_module_names, *LOADERS, "torch", "numpy", "peft", "tokenizers"}
"""Their objects and functions are known by name: where a config was read from is no difference."""
_BAGS = (types.SimpleNamespace, argparse.Namespace)
"""Objects of the standard library that people keep their own settings in."""
_DEPTH = 8


def origin(thing: Any) -> str:
    """The package that a function, a class or an object comes from."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = getattr(thing, "__module__", None) or type(thing).__module__
    return str(name).partition(".")[0]


class Held:
    """Reads what things hold; modules of the model itself are known by their names."""

    def __init__(
        self,
        names: Mapping[int, str],
        of_tensor: Callable[[Tensor], Any],
        of_module: Callable[[nn.Module], Any],
    ) -> None:
        self._names, self._of_tensor, self._of_module = names, of_tensor, of_module
        self._seen: dict[int, tuple[int, int]] = {}
        """Objects and foreign modules by their place in the order in which they were met."""

    def facts(self, value: Any, depth: int = 0) -> Any:
        """A plain value as it is, others by what they hold; None for what holds nothing known."""
        if value is None or depth > _DEPTH:
            return None
        if isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | complex | bytes | torch.dtype):
            return repr(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return repr(value.item())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        deeper = functools.partial(self.facts, depth=depth + 1)
        if isinstance(value, Mapping):
            return [[deeper(key), deeper(item)] for key, item in value.items()]
        if isinstance(value, list | tuple | deque):
            return [deeper(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted((deeper(item) for item in value), key=repr)
        if isinstance(value, functools.partial):
            return [deeper(value.func), deeper(value.args), deeper(value.keywords)]
        if isinstance(value, types.MethodType):
            return self._method(value, deeper)
        if isinstance(value, types.FunctionType):
            return self._function(value, deeper)
        if isinstance(value, types.BuiltinFunctionType):
            return value.__qualname__
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, type | types.ModuleType):
            return None
        if callable(value):
            return [type(value).__qualname__, deeper(type(value).__call__), deeper(_fields(value))]
        if isinstance(value, _BAGS) or not _is_of_a_library(type(value)):
            read = functools.partial(self._of_object, value, deeper)
            return self._once(value, read, depth=depth)
        return None

    @staticmethod
    def _of_object(value: Any, deeper: Callable[[Any], Any]) -> list[Any]:
        return [type(value).__qualname__, deeper(_fields(value))]

    def _once(self, value: Any, read: Callable[[], Any], *, depth: int = 0) -> Any:
        """Objects may hold each other: the second time they are named by their place.

        One that was met deeper, where less of it was read, is read again.
        """
        place, before = self._seen.get(id(value), (len(self._seen), depth + 1))
        if depth >= before:
            return ["again", place]
        self._seen[id(value)] = (place, depth)
        return read()

    def _module(self, module: nn.Module) -> Any:
        if id(module) in self._names:
            return ["of the model", self._names[id(module)]]
        return self._once(module, lambda: self._of_module(module))

    def _method(self, method: types.MethodType, deeper: Callable[[Any], Any]) -> list[Any]:
        owner = method.__self__
        if isinstance(owner, nn.Module):
            kept = self._module(owner)
        else:
            kept = deeper(getattr(owner, "__dict__", None))
        return [deeper(method.__func__), type(owner).__qualname__, kept]

    def _function(self, function: types.FunctionType, deeper: Callable[[Any], Any]) -> list[Any]:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        used = {} if origin(function) in _LIBRARIES else _used(function)
        held = (function.__defaults__, function.__kwdefaults__, cells, used)
        return [function.__qualname__, _code_facts(function.__code__), *map(deeper, held)]


def replaced_parts(kind: type) -> Iterator[types.FunctionType]:
    """The forward of a class, and functions that it calls, where somebody put others there."""
    for owner in kind.__mro__:
        function = vars(owner).get("forward")
        if not isinstance(function, types.FunctionType):
            continue
        own = inspect.unwrap(function)
        home = {*LOADERS, "torch", origin(owner)}
        named = (own.__module__, own.__qualname__)
        if named != (owner.__module__, f"{owner.__qualname__}.forward") and (
            origin(own) not in (*LOADERS, "torch")
        ):
            yield function
        for part in map(own.__globals__.get, _names(own.__code__)):
            if isinstance(part, types.FunctionType) and origin(part) not in home:
                yield part
        return  # what it inherits is not called, or through it


def _is_of_a_library(kind: type) -> bool:
    """True also for configs and tokenizers that come with a model's own code."""
    bases = {origin(base) for base in kind.__mro__} - set(sys.stdlib_module_names)
    return origin(kind) in _LIBRARIES or not bases.isdisjoint(_LIBRARIES)


def _fields(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return held | getattr(value, "__dict__", {})


def _used(function: types.FunctionType) -> dict[str, Any]:
    """Global names that a function uses, with attributes of modules that are no library."""
    names = _names(function.__code__)
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for part in [x for x in found.values() if isinstance(x, types.ModuleType)]:
        if part.__name__.partition(".")[0] not in _LIBRARIES:
            found |= {
                f"{part.__name__}.{name}": getattr(part, name)
                for name in names
                if hasattr(part, name)
            }
    return {
        name: value
        for name, value in sorted(found.items())
        if not isinstance(value, types.FunctionType) or origin(value) not in _LIBRARIES
    }


def _names(code: types.CodeType) -> list[str]:
    """Names that code uses, also inside its inner functions and comprehensions."""
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return [*dict.fromkeys([*code.co_names, *(name for one in inner for name in _names(one))])]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _code_facts(code: types.CodeType) -> list[Any]:
    constants = [
        _code_facts(x)
        if isinstance(x, types.CodeType)
        else sorted(map(repr, x))  # of a set, whose order differs between processes
        if isinstance(x, frozenset)
        else repr(x)
        for x in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]
