"""Results: frozen numpy with their provenance, and the folder they are kept in.

A result's folder has `result.json` (what it is and where it came from) and `arrays.npz` (the
numbers). It opens, becomes a frame and draws its figures without torch.

    Provenance       which software, model, prompts and arguments made the numbers
    Result           what all results share: save, figures, repr, HTML
    missing_as_nan   a column that folders of older versions lack

To add a kind of result, add one module to this folder with a subclass of `Result`, and one to
`figures/` if it has figures. Nothing else lists the kinds.
"""

import dataclasses
import hashlib
import html
import json
import math
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

import llmprobe
from llmprobe.base.files import (
    as_path,
    sync,
    write_arrays,
    write_folder,
    write_into,
)
from llmprobe.results.views import View

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
_NO_OPTIONS = ("bos_token", "query_tokens", "merged")
"""Among the recorded arguments: facts that no option sets."""
Also = Callable[[Path], object]
"""Writes more files into a result's folder."""


def _nothing_else(folder: Path) -> None:
    """For a folder that has the result alone."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What made the numbers. It names no user, no host and no path."""

    llmprobe: str
    torch: str
    transformers: str
    model: str
    """Hub id, or the name of the folder, file or class."""
    revision: str | None
    """Resolved commit of a hub model."""
    dtype: str
    device: str
    """Kind of device: cpu, cuda, mps."""
    attention: str
    """Attention backend, such as sdpa."""
    prompts: str
    """Name of the prompt set."""
    prompts_hash: str
    """Digest of its tokens."""
    seed: int
    arguments: Mapping[str, Any]
    """The call's arguments; of a path only its last part is kept."""
    created: str
    """UTC, ISO 8601, to the second."""

    @classmethod
    def record(cls, *, model: str, arguments: Mapping[str, Any], **facts: Any) -> Self:
        """Fill in the versions and the time, and reduce paths to names."""
        return cls(
            llmprobe=llmprobe.__version__,
            torch=_version("torch"),
            transformers=_version("transformers"),
            model=_portable(model),
            arguments=_portable(arguments),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            **{name: _portable(fact) for name, fact in facts.items()},
        )


def missing_as_nan(*shape: str) -> Any:
    """A field of a result for an array that folders of older versions lack.

    `shape` names the fields whose lengths are the array's shape. In an older folder, where the
    array is missing, it is NaN everywhere:

        kurtosis: Array = missing_as_nan("layer_type", "lengths")

    A field that is no array takes a plain default instead. A field without any default is
    required: a folder that lacks it is refused.
    """
    return dataclasses.field(default=None, metadata={"shape": shape})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(ABC):
    """Base of all results: frozen numbers that know what made them.

    `headline()` is the result in one line, `table()` what a terminal shows, `to_frame()` a tidy
    pandas table for further analysis, `plot()` one of the figures that `plots` lists. `save()`
    writes a folder that `load_result` opens, without torch.

    A kind is a frozen dataclass. Its array fields go to `arrays.npz`, its other fields to
    `result.json`. `__post_init__` of the subclass checks them, because a folder may come from
    anybody. A field that is added later needs a default (`missing_as_nan` for arrays), so that
    folders of older versions still open.
    """

    kind: ClassVar[str] = ""
    """Names the class in `result.json`: `class VarianceResult(Result, kind="variance")`."""
    kinds: ClassVar[dict[str, type["Result"]]] = {}
    plots: ClassVar[dict[str, str]]
    """Names of the figures and what each shows; the first is the default."""
    comparable: ClassVar[bool] = False
    """Whether `compare` draws several of them."""
    views: ClassVar[tuple[View, ...]] = ()
    """What a page and `explore()` show, in this order."""
    joins: ClassVar[str] = ""
    """The module whose `join(folders)` makes one result of several. A name, so that a result
    needs no torch; `merge_results` imports it."""

    provenance: Provenance
    warnings: tuple[str, ...]
    """What weakens the numbers, in words."""

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind
        if kind:
            cls.kinds[kind] = cls

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and "shape" in field.metadata:
                shape = [len(getattr(self, name)) for name in field.metadata["shape"]]
                value = np.full(shape, np.nan)
            if isinstance(value, np.ndarray):
                frozen = value.copy()
                frozen.setflags(write=False)
                object.__setattr__(self, field.name, frozen)
        object.__setattr__(self, "warnings", tuple(self.warnings))
        if not all(isinstance(warning, str) for warning in self.warnings):
            raise ValueError(f"warnings: got {self.warnings!r}, accepted: strings")

    @property
    def subject(self) -> str:
        """What the numbers are about: the model."""
        return self.provenance.model

    @property
    def default_plot(self) -> str:
        """The figure that answers the main question."""
        return next(iter(self.plots))

    @abstractmethod
    def headline(self) -> str:
        """The result in one line."""

    @abstractmethod
    def table(self, *, width: int | None = None) -> Any:
        """The main numbers as a rich table, or a group of tables, to print.

        In a terminal of `width` columns, columns that do not fit may be left out; the table says
        so. None means that there is no limit.
        """

    @abstractmethod
    def to_frame(self) -> "pd.DataFrame":
        """The numbers as a tidy pandas table, with plain dtypes; its columns are public."""

    def key_frame(self) -> "pd.DataFrame":
        """The rows that answer the question, such as slopes with their CIs, for a notebook."""
        return self.to_frame()

    def command(self) -> str | None:
        """The command that makes this result; None if there is none."""
        return None

    def explore(self) -> Any:
        """A chart to click on, for a notebook: an Altair chart of the result's views."""
        from llmprobe.results.report.charts import explore, inked, line_charts, stacked

        named = [(self.subject, self)]
        found = [chart for chart in (explore(named), line_charts(named)) if chart is not None]
        if not found:
            raise ValueError(f"explore: a result of {self.kind} has no chart; use plot()")
        return inked(stacked(found), ink="#333333")

    @abstractmethod
    def _draw(self, kind: str, ax: Any) -> Any:
        """Draw one of `plots`."""

    @classmethod
    def compare(cls, named: Mapping[str, Any]) -> tuple[Any, Any]:
        """Several named results of this kind: a table to print, and the Axes of one figure."""
        raise NotImplementedError(f"results of {cls.kind} are not compared")

    @classmethod
    def compare_document(cls, named: Mapping[str, Any]) -> dict[str, Any]:
        """The same as JSON can hold it."""
        results = [{"name": name} | result.to_document() for name, result in named.items()]
        return {"kind": cls.kind, "results": results}

    def remarks(self) -> list[str]:
        """Sentences to print below the table: what the numbers say."""
        return []

    def plot(self, kind: str | None = None, *, ax: Any = None) -> Any:
        """Draw one of `plots` into `ax` or a new figure; nothing is shown or saved.

        Returns the Axes, or an array of them if the figure has several panels.
        """
        kind = self.default_plot if kind is None else kind
        if kind not in self.plots:
            raise ValueError(f"plot: got kind {kind!r}, accepted: {', '.join(self.plots)}")
        return self._draw(kind, ax)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        also: Also = _nothing_else,
    ) -> Path:
        """Write the result's folder, whole or not at all.

        An existing result is replaced only with `overwrite`. `also` is called with the folder to
        write more files into it. Figures are not drawn: see `save_figures`.
        """
        target = as_path("folder", folder)
        write_folder(target, partial(self._write, also=also), overwrite=overwrite)
        return target

    def save_into(
        self,
        folder: Path,
        *,
        also: Also = _nothing_else,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Write the result's files into a folder that holds other files as well.

        `before` is called when all files are written and only have to be renamed.
        """
        write_into(folder, partial(self._write, also=also), last="result.json", before=before)

    def save_figure(
        self, path: str | os.PathLike[str], kind: str | None = None, *, width: float | None = None
    ) -> Path:
        """Write one figure to a file; its suffix is the format, `width` is in inches.

        The file appears whole or not at all. A symbolic link at `path` is replaced, not followed.
        """
        from llmprobe.results.figures.style import write_figure

        target = as_path("path", path)
        write_figure(self.plot(kind), target, width=width)
        return target

    def save_figures(
        self, folder: str | os.PathLike[str], *, formats: Sequence[str] = ("png", "pdf")
    ) -> list[Path]:
        """Write the default figure into a folder, in several formats, named after the kind."""
        from llmprobe.results.figures.style import write_figure

        paths = [as_path("folder", folder) / f"{self.kind}.{ending}" for ending in formats]
        write_figure(self.plot(), *paths)
        return paths

    def _write(self, folder: Path, *, also: Also) -> None:
        also(folder)
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        write_arrays(folder / "arrays.npz", arrays)
        document = {
            "format": "llmprobe",
            "schema": SCHEMA,
            "kind": self.kind,
            "arrays": {
                name: {"dtype": array.dtype.str, "shape": list(array.shape)}
                for name, array in arrays.items()
            },
            "fields": {name: value for name, value in fields.items() if name not in arrays}
            | {"provenance": dataclasses.asdict(self.provenance)},
        }
        document["checksums"] = checksums(document, folder / "arrays.npz")
        with (folder / "result.json").open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        sync(folder / "result.json")

    def to_document(self) -> dict[str, Any]:
        """Everything but raw arrays as JSON can hold it; NaN becomes null."""
        return {
            "kind": self.kind,
            "headline": self.headline(),
            "provenance": dataclasses.asdict(self.provenance),
            "rows": records(self.to_frame()),
            "warnings": list(self.warnings),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline()})"

    def _repr_html_(self) -> str:
        table = self.key_frame().to_html(index=False, max_rows=24, float_format="{:.4g}".format)
        return f"<p><b>{html.escape(self.headline())}</b></p>\n{table}"


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _portable(value: Any) -> Any:
    """The value as JSON can hold it, without paths of this machine."""
    if isinstance(value, Mapping):
        return {str(_portable(key)): _portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_portable(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return _portable(value.tolist())
    if isinstance(value, str | PurePath):
        return _without_path(str(value), force=isinstance(value, PurePath))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    # A slice or a dtype says what it is; a model or a tokenizer would say far too much.
    simple = isinstance(value, slice) or type(value).__name__ == "dtype"
    return str(value) if simple else type(value).__name__


def _without_path(text: str, *, force: bool) -> str:
    """Only the last part of what looks like a path: absolute, or relative to a known place."""
    starts = ("/", "~", "./", "../", "\\", "file:")
    if force or text.startswith(starts) or re.match(r"[A-Za-z]:[\\/]", text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1]
    return text


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """A frame's rows as JSON can hold them, to the last digit; NaN and infinity are None."""
    import pandas as pd

    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        missing = pd.isna(value) or value in (math.inf, -math.inf)
        return None if missing else value

    # Not by `to_json`: it rounds to 15 decimal places, which is nothing of a small number.
    return [
        {str(name): plain(value) for name, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]


def command_line(name: str, options: Mapping[str, Any], *words: str) -> str:
    """A command of llmprobe as a shell takes it; an option that is None or False is left out."""
    parts = ["llmprobe", name, *map(shlex.quote, words)]
    for option, value in options.items():
        if value is None or value is False or option in _NO_OPTIONS:
            continue
        parts.append(f"--{option.replace('_', '-')}")
        if value is not True:
            listed = isinstance(value, list | tuple)
            parts.append(shlex.quote(",".join(map(str, value)) if listed else str(value)))
    return " ".join(parts)


def checksums(document: Mapping[str, Any], arrays: Path) -> dict[str, str]:
    """Of what a result's two files say, so that neither is taken with another's."""
    said = {name: document[name] for name in ("kind", "arrays", "fields")}
    text = json.dumps(said, sort_keys=True, allow_nan=False)
    with arrays.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"document": hashlib.sha256(text.encode()).hexdigest(), "arrays": digest}


def check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """For `__post_init__`: a field that must be numbers of a shape."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "if" or array.shape != shape:
        came = getattr(array, "shape", type(array).__name__)
        raise ValueError(f"{name} has shape {came}, accepted: numbers of shape {shape}")
