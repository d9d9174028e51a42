"""Results: frozen numpy with their provenance, and the folder they are kept in.

A result's folder has `result.json` (what it is and where it came from) and `arrays.npz` (the
numbers). It opens, becomes a frame and draws its figure without torch:

    result = load_result("runs/llama")
    result.to_frame()
    result.plot()

    Provenance       which software, model, prompts and arguments made the numbers
    Result           what all results share: save, repr, HTML; a new kind is a subclass
    VarianceResult   variance of attention outputs by length
"""

import dataclasses
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

import llmprobe
from llmprobe.errors import LLMProbeError, ResultFormatError
from llmprobe.storage import read_arrays, sync, write_arrays, write_folder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA = 1
_MAX_JSON_BYTES = 16 * 2**20


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
            **facts,
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """Base of all results. A subclass is a frozen dataclass that names its `kind`.

    Its array fields go to `arrays.npz`, its other fields to `result.json`. `__post_init__` of the
    subclass checks shapes, so that a folder from a stranger is checked when it is opened.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type["Result"]]] = {}
    plots: ClassVar[dict[str, str]]
    """Names of the figures and what each shows; the first is the default."""

    provenance: Provenance

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                frozen = value.copy()
                frozen.setflags(write=False)
                object.__setattr__(self, field.name, frozen)

    def to_frame(self) -> "pd.DataFrame":
        """The numbers as a tidy table; its columns are public."""
        raise NotImplementedError  # pragma: no cover

    def headline(self) -> str:
        """The result in one line."""
        raise NotImplementedError  # pragma: no cover

    def _draw(self, kind: str, ax: "Axes | None") -> "Axes":
        raise NotImplementedError  # pragma: no cover

    def plot(self, kind: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Draw one of `plots`, into `ax` or a new figure; nothing is shown or saved."""
        kind = next(iter(self.plots)) if kind is None else kind
        if kind not in self.plots:
            raise ValueError(f"plot: got kind {kind!r}, accepted: {', '.join(self.plots)}")
        return self._draw(kind, ax)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the result's folder, whole or not at all; an existing one only if told to."""
        target = Path(folder).expanduser()
        write_folder(target, self._write, overwrite=overwrite)
        return target

    def _write(self, folder: Path) -> None:
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
        with (folder / "result.json").open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        sync(folder / "result.json")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline()})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, max_rows=24, float_format="{:.4g}".format)
        return f"<p><b>{html.escape(self.headline())}</b></p>\n{table}"


def load_result(folder: str | os.PathLike[str]) -> Result:
    """Open a saved result of any kind; `ResultFormatError` says why where it cannot."""
    folder = Path(folder).expanduser()
    try:
        document = _read_document(folder)
        kind: Any = Result.kinds[document["kind"]]
        fields = dict(document["fields"])
        fields["provenance"] = Provenance(**fields["provenance"])
        arrays = read_arrays(folder / "arrays.npz", document["arrays"])
        return kind(**fields, **arrays)
    except LLMProbeError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultFormatError(f"{folder} is not a readable result: {error!r}") from error


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.is_file():
        raise ResultFormatError(f"{folder} is no result: it has no result.json")
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ResultFormatError(f"{path} is larger than any result's ({_MAX_JSON_BYTES} bytes)")
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != "llmprobe":
        raise ResultFormatError(f"{path} was not written by llmprobe")
    schema = document.get("schema")
    if schema != SCHEMA:
        hint = (
            "; upgrade llmprobe to open it" if isinstance(schema, int) and schema > SCHEMA else ""
        )
        raise ResultFormatError(f"{path} has schema {schema!r}, this version reads {SCHEMA}{hint}")
    if document.get("kind") not in Result.kinds:
        known = ", ".join(Result.kinds)
        raise ResultFormatError(f"{path} has kind {document.get('kind')!r}, known: {known}")
    return document


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _portable(value: Any) -> Any:
    """The value as JSON can hold it, without paths of this machine."""
    if isinstance(value, Mapping):
        return {str(key): _portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_portable(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath) or (isinstance(value, str) and _is_path(value)):
        return PurePath(value).name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return type(value).__name__


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../", "\\")) or text[1:3] == ":\\"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VarianceResult(Result):
    """How the variance of attention outputs changes with the length of the prompt.

    A series is one layer, or one head of a layer. Arrays have the shape (series,) or
    (series, lengths). "Over prompts" and "over features" name the axis of every statistic.
    """

    kind: ClassVar[str] = "variance"
    plots: ClassVar[dict[str, str]] = {"decay": "standard deviation over prompts against length"}

    at: str
    """`output`: after the output projection; `heads`: each head before it."""
    component: int
    """The one feature that `component_std` is about (Figure 1)."""
    lengths: tuple[int, ...]
    reference: int
    """The length that the drifts are measured from."""
    layer_type: tuple[str, ...]
    """full, sliding or linear; one for each series."""
    warnings: tuple[str, ...]
    """What weakens the numbers, in words."""
    layer: NDArray[np.int64]
    head: NDArray[np.int64]
    """−1 where the series is a whole layer."""
    n_prompts: NDArray[np.int64]
    """(series, lengths)"""
    component_std: NDArray[np.float64]
    """Standard deviation over prompts of the chosen feature; (series, lengths), like the next."""
    std_q25: NDArray[np.float64]
    """Lower quartile over features of the standard deviation over prompts."""
    std_median: NDArray[np.float64]
    std_q75: NDArray[np.float64]
    global_mean: NDArray[np.float64]
    """Mean over features of one output, averaged over prompts."""
    global_variance: NDArray[np.float64]
    """Variance over features of one output, as LayerNorm sees it, averaged over prompts."""
    mean_drift: NDArray[np.float64]
    """(global mean − the reference's) / the reference's global variance (Figure 3)."""
    vector_drift: NDArray[np.float64]
    """Distance of the mean outputs, in standard deviations of the reference."""
    slope: NDArray[np.float64]
    """d log std / d log N, the mean over features of each one's own; (series,), like the next."""
    slope_low: NDArray[np.float64]
    slope_high: NDArray[np.float64]
    """The 95 % interval, by a jackknife over groups of prompts."""
    r2: NDArray[np.float64]

    _BY_LENGTH: ClassVar[tuple[str, ...]] = (
        "n_prompts",
        "component_std",
        "std_q25",
        "std_median",
        "std_q75",
        "global_mean",
        "global_variance",
        "mean_drift",
        "vector_drift",
    )
    _BY_SERIES: ClassVar[tuple[str, ...]] = ("slope", "slope_low", "slope_high", "r2")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lengths", "layer_type", "warnings"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        series, lengths = len(self.layer_type), len(self.lengths)
        for name in ("layer", "head", *self._BY_SERIES):
            _check_shape(name, getattr(self, name), (series,))
        for name in self._BY_LENGTH:
            _check_shape(name, getattr(self, name), (series, lengths))
        if self.at not in ("output", "heads"):
            raise ValueError(f"at is {self.at!r}, accepted: output, heads")
        if not all(isinstance(length, int) and length > 0 for length in self.lengths):
            raise ValueError(f"lengths are {self.lengths!r}, accepted: positive whole numbers")

    def to_frame(self) -> "pd.DataFrame":
        """A row for each layer, head and length."""
        import pandas as pd

        n_lengths = len(self.lengths)
        columns: dict[str, Any] = {
            "layer": np.repeat(self.layer, n_lengths),
            "head": self._heads().repeat(n_lengths).reset_index(drop=True),
            "length": np.tile(self.lengths, len(self.layer)),
        }
        columns |= {name: getattr(self, name).ravel() for name in self._BY_LENGTH}
        return pd.DataFrame(columns)

    def decay_frame(self) -> "pd.DataFrame":
        """A row for each layer and head: the slope, its interval, R²."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": self.layer, "head": self._heads()}
        return pd.DataFrame(columns | {name: getattr(self, name) for name in self._BY_SERIES})

    def headline(self) -> str:
        n = f"{self.n_prompts.min()}" if self.n_prompts.size else "0"
        what = "heads" if self.at == "heads" else "layers"
        return (
            f"variance of {self.provenance.model}: {len(self.layer)} {what}, "
            f"lengths {min(self.lengths)}..{max(self.lengths)}, {n} prompts, "
            f"median slope {np.nanmedian(self.slope):+.2f}"
        )

    def _heads(self) -> "pd.Series[Any]":
        import pandas as pd

        heads = pd.Series(self.head, dtype="Int64")
        return heads.mask(heads < 0)

    def _draw(self, kind: str, ax: "Axes | None") -> "Axes":
        from llmprobe import plots

        return plots.draw_decay(self.to_frame(), component=self.component, ax=ax)


def _check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "if" or array.shape != shape:
        came = getattr(array, "shape", type(array).__name__)
        raise ValueError(f"{name} has shape {came}, needs numbers of shape {shape}")
