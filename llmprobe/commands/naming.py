"""The folder of a run that was given none: named after what is run.

    runs/variance-builtin                          all settings are the defaults
    runs/variance-builtin-heads-16..4096-fixed     others are named

Settings that decide the numbers are in the name, so another experiment gets another folder and the
same one finds its own. What may grow in a folder, such as the number of prompts, is not.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LONGEST = 80
"""Characters of the settings in a name; more are cut, and a hash tells such names apart."""
_PLAIN = ("at", "lengths", "prompts", "query", "variants", "preset", "search", "dtype", "device")
"""Settings whose values need no name before them; they come first."""


def default_folder(
    command: str, model: str, settings: Mapping[str, Any], *, defaults: Mapping[str, Any]
) -> Path:
    """The folder in runs/; settings that are not in `defaults` do not matter."""
    parts = [
        _part(name, settings[name])
        for name in sorted(defaults, key=_place)
        if name in settings and _spelled(name, settings[name]) != _spelled(name, defaults[name])
    ]
    key = "-".join(parts)
    if len(key) > _LONGEST:
        key = f"{key[:_LONGEST]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return Path("runs") / "-".join(part for part in (command, slug(_name(model)), key) if part)


def slug(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^\w.,+-]+", "-", text).strip("-")


def _place(name: str) -> tuple[int, str]:
    """Where a setting comes in a name, the same in every version: plain ones, then by name."""
    return (_PLAIN.index(name) if name in _PLAIN else len(_PLAIN)), name


def _part(name: str, value: Any) -> str:
    text = slug(_spelled(name, value))
    if name in _PLAIN:
        return text
    if value is True:
        return name.replace("_", "-")
    return f"{name.replace('_', '-')}-{text}"


def _spelled(name: str, value: Any) -> str:
    """A setting in one spelling, however it was written."""
    if name.endswith("lengths") and value is not None:
        return _lengths(str(value))
    is_place = isinstance(value, Path) or name == "prompts"
    return _name(value) if is_place else str(value).replace(" ", "")


def _lengths(text: str) -> str:
    """`16,32,64` and `16..64` are the same lengths; what is not understood is refused later."""
    from llmprobe.base.lengths import parse_lengths

    try:
        lengths = parse_lengths(text)
    except ValueError:
        return text
    first, last, n = lengths[0], lengths[-1], len(lengths)
    for short in (f"{first}..{last}", f"{first}..{last}:{n}"):
        if n > 1 and last - first >= n - 1 and parse_lengths(short) == lengths:
            return short
    return ",".join(map(str, lengths))


def _name(place: str | Path) -> str:
    """Of a path that exists its last part; what cannot be a path is refused later."""
    try:
        path = Path(place).expanduser()
        there = str(place) != "builtin" and path.exists()
    except (OSError, RuntimeError):
        return str(place)
    return path.resolve().name if there else str(place)
