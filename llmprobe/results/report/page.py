"""`write_report`: results as one HTML file that needs no network and no server.

    write_report(["runs/variance-llama", "runs/loss-llama"], "report.html")

The page holds its data, its charts and the code that draws them. It opens from disk, prints, and
without JavaScript it shows static figures and tables. A content security policy lets only our own
scripts run and nothing be fetched. Every word that comes from a file or a model is escaped.
"""

import base64
import hashlib
import html
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from llmprobe.base.files import as_path, replacing
from llmprobe.base.visible import visible
from llmprobe.errors import LLMProbeError, ResultExistsError
from llmprobe.results.base import Result
from llmprobe.results.notes import joined_notes
from llmprobe.results.opening import load_result
from llmprobe.results.pairs import pair_frame
from llmprobe.results.report.charts import explore, inked, line_charts
from llmprobe.results.variance import VarianceResult

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 3000
"""Of a table on the page; the CSV has all."""

Source = Result | str | os.PathLike[str]


def write_report(
    results: Source | Iterable[Source],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about results, given as such or by their folders.

    Results of one model are linked: a click on a head shows its curves of all of them. Several
    models stand next to each other, on the same scales. An existing file is replaced only with
    `overwrite`.
    """
    target = as_path("path", path)
    if target.exists() and not overwrite:
        raise ResultExistsError(f"{target} exists; use another path, or overwrite=True")
    given = [results] if isinstance(results, Result | str | os.PathLike) else list(results)
    if not given:
        raise ValueError("results: got none, accepted: at least one result or folder")
    text = render(_named(given), title=title)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(text.encode("utf-8"))
    return target


def render(results: Sequence[tuple[str, Result]], *, title: str | None = None) -> str:
    """The page as text."""
    subjects = dict.fromkeys(result.subject for _, result in results)
    charts = _charts(results)
    rows: dict[str, Any] = {}
    for _, spec in charts:
        rows |= spec.pop("datasets", {})
    data = {
        "charts": {f"chart-{n}": spec for n, (_, spec) in enumerate(charts)},
        "rows": {name: _compact(given) for name, given in rows.items()},
        "tables": {f"table-{n}": _csv(r.to_frame()) for n, (_, r) in enumerate(results)},
    }
    scripts = [_runtime(), _part("page.js")]
    blocks = {
        "title": _text(title or f"llmprobe: {', '.join(subjects)}"),
        "policy": " ".join(map(_hash, scripts)),
        "style": _part("page.css"),
        "summaries": "\n".join(_summary(*named) for named in results),
        "charts": "\n".join(_chart(n, heading) for n, (heading, _) in enumerate(charts)),
        "figures": "\n".join(_figure(*named) for named in results),
        "tables": "\n".join(_table(n, *named) for n, named in enumerate(results))
        + _differences(results),
        "data": _inert(data),
        "runtime": scripts[0],
        "script": scripts[1],
    }
    return Template(_part("page.html")).substitute(blocks)


def _named(given: Sequence[Source]) -> list[tuple[str, Result]]:
    """Each result by its model; by its folder too where two of a kind have the same model."""
    opened = [
        (source, source if isinstance(source, Result) else load_result(source)) for source in given
    ]
    kinds = [(result.kind, result.subject) for _, result in opened]
    named: list[tuple[str, Result]] = []
    for n, (source, result) in enumerate(opened):
        name = result.subject
        if kinds.count((result.kind, name)) > 1:
            own = f"{n + 1}" if isinstance(source, Result) else as_path("folder", source).name
            name = f"{name} ({own})"
        if (result.kind, name) in [(r.kind, other) for other, r in named]:
            name = f"{name} {n + 1}"
        named.append((name, result))
    return named


def _charts(results: Sequence[tuple[str, Result]]) -> list[tuple[str, dict[str, Any]]]:
    """Headings and specifications: the linked heads, then the lines of each kind."""
    found = [("Heads: click a cell, or choose layer and head below", explore(results))]
    for kind in dict.fromkeys(result.kind for _, result in results):
        found.append((kind, line_charts([named for named in results if named[1].kind == kind])))
    # Ink of the page's own color, as the page can be light or dark.
    return [
        (heading, inked(chart, ink="currentColor").to_dict())
        for heading, chart in found
        if chart is not None
    ]


def _summary(name: str, result: Result) -> str:
    notes = "".join(f"<li>{_text(warning)}</li>" for warning in joined_notes(result.warnings))
    remarks = "".join(f"<p>{_text(remark)}</p>" for remark in result.remarks())
    facts = asdict(result.provenance)
    arguments = facts.pop("arguments")
    rows = "".join(
        f"<tr><th scope=row>{_text(key)}</th><td>{_text(_short(value))}</td></tr>"
        for key, value in {**facts, **arguments}.items()
        if value is not None
    )
    command = result.command()
    made = f"<pre><code>{_text(command)}</code></pre>" if command else ""
    warned = f"<ul class=notes>{notes}</ul>" if notes else ""
    return (
        f"<article><h3>{_text(name)}: {_text(result.kind)}</h3>"
        f"<p class=headline>{_text(result.headline())}</p>{remarks}{warned}"
        f"<details><summary>What made these numbers</summary>{made}"
        f"<table class=facts>{rows}</table></details></article>"
    )


def _chart(number: int, heading: str) -> str:
    return (
        f'<figure class=chart id="chart-{number}" aria-label="{_text(heading)}">'
        f"<figcaption>{_text(heading)}</figcaption><div class=view></div></figure>"
    )


def _figure(name: str, result: Result) -> str:
    """The static figure, for a browser that runs no scripts."""
    from llmprobe.results.figures.style import write_image

    buffer = io.BytesIO()
    write_image(result.plot(), buffer)
    data = base64.b64encode(buffer.getvalue()).decode()
    words = _text(f"{name}: {result.plots[result.default_plot]}")
    return (
        f'<noscript><figure><img alt="{words}" src="data:image/png;base64,{data}">'
        f"<figcaption>{words}</figcaption></figure></noscript>"
    )


def _table(number: int, name: str, result: Result) -> str:
    return _rows(
        f"{name}: {result.kind}",
        result.key_frame(),
        f'<button type=button class=csv data-table="table-{number}" '
        f'data-name="{_text(result.kind)}.csv">download all columns as CSV</button>',
    )


def _differences(results: Sequence[tuple[str, Result]]) -> str:
    """The slopes of the same heads of every two variance results that can be compared."""
    named = [(name, result) for name, result in results if isinstance(result, VarianceResult)]
    tables = []
    for (first, one), (second, other) in combinations(named, 2):
        if (one.at, one.lengths) != (other.at, other.lengths):
            continue
        frame = pair_frame(one.decay_frame(), other.decay_frame())
        if len(frame):
            tables.append(_rows(f"{second} minus {first}: slopes of the same heads", frame))
    return "\n".join(tables)


def _rows(heading: str, frame: "pd.DataFrame", more: str = "") -> str:
    head = "".join(
        f"<th scope=col><button type=button>{_text(column)}</button></th>" for column in frame
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>"
        for row in frame.head(_MAX_ROWS).itertuples(index=False)
    )
    hidden = len(frame) - _MAX_ROWS
    note = f"<p>and {hidden:,} more rows in the CSV</p>" if hidden > 0 else ""
    return (
        f"<details class=table><summary>{_text(heading)}, {len(frame):,} rows</summary>"
        f"<p><label>filter <input type=search></label> {more}</p>"
        f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"</div>{note}</details>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return _text(value)


def _short(value: Any) -> str:
    words = json.dumps(value) if isinstance(value, list | dict) else str(value)
    return words if len(words) <= 300 else words[:300] + " …"


def _text(value: Any) -> str:
    """As text on the page, whatever it holds."""
    return html.escape(visible(str(value)), quote=True)


def _csv(frame: "pd.DataFrame") -> str:
    return frame.to_csv(index=False, float_format="%.6g")


def _compact(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Every column's name once; page.js makes rows of it again."""
    return {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}


def _inert(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _runtime() -> str:
    """Vega, Vega-Lite and Vega-Embed, as the page runs them."""
    try:
        import vl_convert
    except ImportError:
        raise LLMProbeError(
            "a report needs altair and vl-convert-python: pip install 'llmprobe[report]'"
        ) from None
    # An end tag inside a string of the code would end the script.
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(bundle).replace("</script", "<\\/script")


@cache
def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
