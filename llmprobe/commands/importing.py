"""Imports without pauses: torch, transformers and matplotlib make very many objects.

The garbage collector walks through all of them again and again while they are made, and finds
nothing. Without it torch and transformers are imported in three quarters of the processor time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Leave the garbage collector off in this block, for imports and work that is soon done.

    Work that holds tensors stays outside.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
