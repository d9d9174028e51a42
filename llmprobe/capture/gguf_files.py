"""GGUF files: what they declare, and loading them in a fraction of transformers' own time.

transformers reads a file's facts three times, builds its table of tensor names once for every
module of the model, and unpacks weights a few rows at a time in one thread. Within `quick_gguf`
the facts are read once, the table is built once, and weights are unpacked in large pieces by all
threads. Each piece goes through the function of the `gguf` package, so weights are equal to the
bit; nothing is written to disk.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import modeling_gguf_pytorch_utils as gguf_loader

_GGUF_NUMBERS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_GGUF_TEXT, _GGUF_ARRAY = 8, 9
"""Types of values in GGUF files, by number; numbers by the letters of `struct`."""
_MOST_NAME = 2**16
_SIZE = struct.Struct("<Q")
_PIECE = 2**18
"""Weights of a piece: it fits the cache of a core, and the package's overhead is small."""
_READER = "transformers.integrations.gguf.reader"
_parse: Callable[[Any, Any], Any] = gguf_loader._gguf_parse_value


def count_gguf(path: Path) -> int | None:
    """How many tensors a GGUF file announces."""
    with path.open("rb") as file:
        head = file.read(16)
    return int.from_bytes(head[8:], "little") if len(head) == 16 else None


def gguf_values(path: Path, names: Iterable[str]) -> dict[str, int | bool]:
    """Numbers that a GGUF file declares under these names; those that it does not are missing.

    Read up to the last of them: parsing the file as a whole takes seconds.
    """
    wanted, found, at = set(names), dict[str, int | bool](), 16
    data: Any = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else b""

    def number(form: str) -> Any:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(f"<{form}", data, at - struct.calcsize(form))[0]

    def skip(kind: int, count: int = 1) -> None:
        nonlocal at
        if kind in _GGUF_NUMBERS:
            at += count * struct.calcsize(_GGUF_NUMBERS[kind])
        elif kind == _GGUF_TEXT:
            for _ in range(count):
                at += 8 + _SIZE.unpack_from(data, at)[0]
        elif kind == _GGUF_ARRAY:
            for _ in range(count):
                skip(number("I"), number("Q"))
        else:
            raise ValueError(kind)

    try:
        for _ in range(number("Q")):
            start, at = at + 8, at + 8 + min(number("Q"), _MOST_NAME)
            name, kind = bytes(data[start:at]).decode(), number("I")
            if name in wanted and kind in _GGUF_NUMBERS:
                found[name] = number(_GGUF_NUMBERS[kind])
            else:
                skip(kind)
            if found.keys() == wanted:
                break
    except (struct.error, ValueError, OverflowError, RecursionError):
        pass  # the reader of the whole file says what is wrong with it
    return found


@contextmanager
def quick_gguf() -> Iterator[None]:
    """Have transformers load GGUF files quickly, to the same bits."""
    try:
        package: Any = import_module("gguf")
    except ImportError:  # an extra: that it is missing is said elsewhere
        yield
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        quick = {
            "GGUFReader": lru_cache(1)(_plain_reader(package)),
            "get_tensor_name_map": lru_cache(package.get_tensor_name_map),
            "dequantize": _in_pieces(package, pool),
        }
        # transformers imports these names from the package whenever it opens a file.
        with ExitStack() as stack:
            stack.enter_context(_replaced(package, **quick))
            stack.enter_context(_replaced(gguf_loader, _gguf_parse_value=_parse_value))
            if find_spec(_READER):  # not in older versions
                reader = import_module(_READER)
                stack.enter_context(_replaced(reader, _mapped=_plainly(reader._mapped)))
            yield


def _plainly(mapped: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: np.asarray(mapped(path))


@contextmanager
def _replaced(owner: Any, **new: Any) -> Iterator[None]:
    old = {name: getattr(owner, name) for name in new}
    try:
        vars(owner).update(new)
        yield
    finally:
        vars(owner).update(old)


def _plain_reader(package: Any) -> type[Any]:
    """A reader without a memory map's overhead for every slice, and with texts as bytes."""
    text, array = int(package.GGUFValueType.STRING), package.GGUFValueType.ARRAY

    class PlainReader(package.GGUFReader):
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = np.asarray(mapped)

        def _get_field_parts(self, start: int, raw_type: int) -> Any:
            if raw_type != array or self.byte_order != "I":
                return super()._get_field_parts(start, raw_type)
            kind, count = self._get(start, np.uint32), self._get(start + 4, np.uint64)
            of, n, begin = int(kind[0]), int(count[0]), start + 12
            if of in _GGUF_NUMBERS:
                every = self._get(begin, self.gguf_scalar_to_np[package.GGUFValueType(of)], n)
                pieces, end = [every[i : i + 1] for i in range(len(every))], begin + every.nbytes
            elif of == text:
                pieces, end = _texts(self._data, begin, n)
            else:
                return super()._get_field_parts(start, raw_type)
            types = [array, package.GGUFValueType(of)][: 1 + bool(pieces)]
            indices = list(range(2, 2 + len(pieces)))
            return end - start, [kind, count, *pieces], indices, types

    return PlainReader


def _texts(data: Any, start: int, count: int) -> tuple[list[Any], int]:
    """Texts that follow each other, each behind its size, and where the last one ends."""
    found, at, whole = [], start, memoryview(data)
    for _ in range(count):
        (size,) = _SIZE.unpack_from(whole, at)
        at += 8 + size
        if at > len(whole):
            raise ValueError("a text reaches beyond the end of the file")
        found.append(data[at - size : at])
    return found, at


def _in_pieces(package: Any, pool: ThreadPoolExecutor) -> Callable[[Any, Any], Any]:
    """`gguf.dequantize` for large pieces of a tensor at a time, in several threads."""
    dequantize, sizes = package.dequantize, package.GGML_QUANT_SIZES
    plain = package.GGMLQuantizationType.F32, package.GGMLQuantizationType.F16

    def unpack(data: Any, kind: Any) -> Any:
        if kind in plain:
            return dequantize(data, kind)
        block, packed = sizes[kind]
        if data.shape[-1] % packed:
            return dequantize(data, kind)  # says what is wrong
        blocks = data.reshape(-1, packed)
        whole = np.empty((len(blocks), block), np.float32)
        step = max(1, _PIECE // block)

        def piece(start: int) -> None:
            part = blocks[start : start + step]
            # As one long row: the package takes several rows at a time, but few.
            whole[start : start + step] = dequantize(part.reshape(1, -1), kind).reshape(-1, block)

        dequantize(blocks[:1], kind)  # fills tables that all threads share
        for _ in pool.map(piece, range(0, len(blocks), step)):
            pass
        return whole.reshape(*data.shape[:-1], -1).view(_Fresh)

    return unpack


class _Fresh(np.ndarray):
    """Weights that nobody else holds: `np.copy`, which transformers calls, need not copy them."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.copy and len(args) == 1 and not kwargs:
            (array,) = args
            own = array
            while own.base is not None:
                own = own.base
            if own.nbytes == array.nbytes:
                return np.asarray(array)
        return super().__array_function__(function, types, args, kwargs)


def _parse_value(value: Any, types: Any) -> Any:
    """transformers' `_gguf_parse_value`, which turns every byte of a text into a number first."""
    kind = types[-1] if isinstance(types, list) else types
    return bytes(value).decode() if kind == _GGUF_TEXT else _parse(value, types)
