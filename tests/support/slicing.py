"""Make an attention module work in slices and by prefixes on prompts that are short."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from llmprobe.capture import single_positions


@contextmanager
def in_slices(module, slice_size):
    """Slices of so many positions of all prompts, where the module's trial has allowed slices."""
    way = single_positions._known[module]
    single_positions._known[module] = replace(way, slice_size=way.slice_size and slice_size)
    try:
        with patch.object(single_positions, "_PREFIX_KEYS", 1):
            yield
    finally:
        single_positions._known[module] = way
