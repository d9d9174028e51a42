"""Dictionaries in dictionaries as one flat dictionary, and back: how state is stored and sent.

flatten({"weights": {"a": x}, "step": y}, ".")  ==  {"weights.a": x, "step": y}
under("weights", flat, ".")                     ==  {"a": x}
"""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def flatten(nested: Mapping[Any, Any], separator: str) -> dict[str, Any]:
    """One level of names joined by the separator, however deep the mappings go."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            inner = flatten(value, separator)
            flat |= {f"{key}{separator}{name}": item for name, item in inner.items()}
        else:
            flat[str(key)] = value
    return flat


def under(key: object, flat: Mapping[str, T], separator: str) -> dict[str, T]:
    """What `flatten` put under one key."""
    start = f"{key}{separator}"
    return {name.removeprefix(start): x for name, x in flat.items() if name.startswith(start)}


def nest(flat: Mapping[str, T], separator: str) -> dict[str, dict[str, T]]:
    """One level of nesting: names are cut at the first separator."""
    nested: dict[str, dict[str, T]] = {}
    for name, value in flat.items():
        key, _, rest = name.partition(separator)
        nested.setdefault(key, {})[rest] = value
    return nested
