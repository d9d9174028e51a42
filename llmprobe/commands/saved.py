"""`show`, `plot`, `compare`, `merge` and `report`: the commands that open saved results."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmprobe.commands.importing import importing
from llmprobe.commands.options import FLAG, OUTPUT_PANEL, PATH, Debug, Json, Overwrite, choice
from llmprobe.commands.running import check_drawing, check_place
from llmprobe.commands.showing import (
    print_document,
    print_result,
    print_table,
    say,
    show_result,
    terminal_width,
)

if TYPE_CHECKING:
    from llmprobe.results.base import Result

TABLE: dict[str, Any] = {"rich_help_panel": "Table"}
FIGURE: dict[str, Any] = {"rich_help_panel": "Figure"}
OUTPUT: dict[str, Any] = {"rich_help_panel": OUTPUT_PANEL}


@importing()
def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a result or a run.", **PATH)
    ],
    sort: Annotated[
        str | None,
        typer.Option(
            **choice(
                *("slope", "layer"),
                text="Order of the rows. Default: steepest slope first if there are many.",
            ),
            **TABLE,
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="N|all", help="Rows to print. Default: 20.", **TABLE)
    ] = None,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", **FLAG, help="Print all rows by length as CSV.", **OUTPUT),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a saved result, or how far a run is.

    It needs no torch.
    """
    from llmprobe.base.files import is_result
    from llmprobe.results.opening import load_result, unfinished

    if as_csv and as_json:
        raise ValueError("csv and json: got both; give only one of them")
    given: dict[str, Any] = {} if sort is None else {"sort": sort}
    given |= {} if rows is None else {"rows": _rows(rows)}
    state = unfinished(folder)
    if state is not None and not is_result(folder):
        say(f"{folder}: {state}")
        return
    result = load_result(folder)
    if as_json:
        print_document(result, folder)
    elif as_csv:
        typer.echo(result.to_frame().to_csv(index=False), nl=False)
    else:
        print_result(result, folder, _table(result, given))
    if state is not None:
        say(f"{folder}: more prompts: {state}", err=True)


def _rows(text: str) -> int | None:
    if text == "all":
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ValueError(f"rows: got {text!r}, accepted: all, or 1 or more")
    return int(text)


def _table(result: "Result", options: dict[str, Any]) -> Any:
    """Its table; only series have rows to sort and to leave out."""
    if not options:
        return result.table(width=terminal_width())
    return _series(result, options).table(width=terminal_width(), **options)


def _series(result: "Result", options: dict[str, Any]) -> Any:
    """A result by layer and head, which these options are for."""
    from llmprobe.results.series import SeriesResult

    if not isinstance(result, SeriesResult):
        (name, *_) = options
        raise ValueError(
            f"{name}: got {options[name]!r}, but {result.kind} results have no heads; leave it out"
        )
    return result


@importing()
def plot(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a saved result.", **PATH)
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which figure (llmprobe ls kinds). Default: the main one.",
            **FIGURE,
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Draw this layer only.", **FIGURE)
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Draw this head of each layer only.", **FIGURE)
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:N", help="steepest:6 or flattest:6: draw so many heads only.", **FIGURE
        ),
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", **choice("png", "pdf", "svg", text="File format."), **OUTPUT)
    ] = "png",
    width: Annotated[
        float | None, typer.Option(metavar="INCHES", help="Width of the figure.", **FIGURE)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write. Default: KIND.FORMAT in the folder.",
            **PATH,
            **OUTPUT,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw a figure of a saved result.

    It needs neither the model nor torch.
    """
    from llmprobe.results.opening import load_result

    if file_format not in ("png", "pdf", "svg"):
        raise ValueError(f"format: got {file_format!r}, accepted: png, pdf, svg")
    if width is not None and not 1 <= width <= 40:
        raise ValueError(f"width: got {width}, accepted: 1 to 40 inches")
    if output is not None and output.suffix != f".{file_format}":
        raise ValueError(
            f"output: got {output}, accepted: a name such as figure.{file_format}; or give another "
            "--format"
        )
    check_drawing()
    result = load_result(folder)
    given = {"layer": layer, "head": head, "heads": heads}
    chosen = {name: value for name, value in given.items() if value is not None}
    words = "".join(f"-{name}-{value}".replace(":", "-") for name, value in chosen.items())
    if chosen:
        result = _series(result, chosen).select(**chosen)
    target = output or folder / f"{kind or result.default_plot}{words}.{file_format}"
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    result.save_figure(target, kind, width=width)
    say(str(target))


@importing()
def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of saved results of one kind.", **PATH),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Figure to write: .png, .pdf or .svg.", **PATH, **OUTPUT),
    ] = Path("runs/compare.png"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare results: one figure, and differences by head.

    Variance or loss results. Two variance results are paired by layer and head.
    """
    check_drawing()
    from llmprobe.results.figures.style import write_figure
    from llmprobe.results.opening import comparable_kinds, load_result

    if output.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"output: got {output}, accepted: a name that ends in .png, .pdf or .svg")
    results = [load_result(folder) for folder in folders]
    for folder, result in zip(folders, results, strict=True):
        accepted = comparable_kinds() if result is results[0] else [results[0].kind]
        if result.kind not in accepted:
            raise ValueError(
                f"{folder} is a result of {result.kind}; compare those of {' or '.join(accepted)}"
            )
    names = [result.provenance.model for result in results]
    if len(set(names)) < len(names):
        names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ValueError("compare: got the same folder twice, accepted: different ones")
    check_place(output)
    named = dict(zip(names, results, strict=True))
    table, axes = type(results[0]).compare(named)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_figure(axes, output)
    if as_json:
        typer.echo(json.dumps(type(results[0]).compare_document(named)))
        return
    print_table(table)
    say(f"figure: {output}")


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Folders of saved results of one kind, with the same settings.",
            **PATH,
        ),
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the joined result.", **PATH, **OUTPUT)
    ],
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Join results of different seeds or lengths, exactly."""
    from llmprobe.runs.merging import merge_results

    check_place(output)
    check_drawing()
    result = merge_results(folders, output, overwrite=overwrite)
    show_result(result, output, as_json=as_json)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Saved results, of one model or of several.", **PATH),
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The page to write.", **PATH, **OUTPUT)
    ] = Path("runs/report.html"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", **FLAG, help="Replace a page that is there.", **OUTPUT)
    ] = False,
    debug: Debug = False,
) -> None:
    """Write results as one HTML page with linked charts.

    The page needs no network; writing it needs no torch.
    """
    from llmprobe.results.report.page import write_report

    if output.suffix not in (".html", ".htm"):
        raise ValueError(f"output: got {output}, accepted: a name that ends in .html")
    check_place(output)
    check_drawing()
    page = write_report(folders, output, overwrite=overwrite)
    say(f"report: {page} ({page.stat().st_size / 1e6:.1f} MB)")
