"""What was found: one row for each comparison, and how rows become a table, files and a figure.

A ratio is oriented as its target says: "times as fast" should be large, "memory over theirs" small.
Files name the versions, the cores and the rate of the machine, but not whose machine it was.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from measure import paired
from rich.console import Console
from rich.table import Table

from llmprobe.results.figures.style import COLUMN_WIDTH, palette, styled_axes

PACKAGES = ("llmprobe", "torch", "transformers", "transformer-lens", "nnsight", "numpy", "scipy")
_COLUMNS = {
    "case": 4,
    "comparison": 62,
    "ours": 12,
    "theirs": 12,
    "ratio": 9,
    "over rounds": 18,
    "target": 9,
    "": 7,
}


@dataclass(frozen=True)
class Finding:
    case: str
    name: str
    ours: float
    theirs: float | None
    """None where ours stands alone."""
    unit: str
    ratio: float
    low: float
    """The least ratio of a round."""
    high: float
    repeats: int
    target: float | None = None
    at_least: bool = True
    """Whether the ratio should reach the target or stay below it."""
    note: str = ""
    limit_share: float | None = None
    """What ours reaches of the rate that the machine multiplies matrices with."""
    equal: bool = True
    """Whether both gave the same numbers; if not, the times say nothing."""

    @property
    def held(self) -> bool:
        if self.target is None:
            return self.equal
        reached = self.ratio >= self.target if self.at_least else self.ratio <= self.target
        return self.equal and reached

    @property
    def wanted(self) -> str:
        """The target with its direction."""
        if self.target is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.target:.3g}"

    @property
    def verdict(self) -> str:
        if not self.equal:
            return "UNEQUAL"
        if self.target is None:
            return ""
        return "held" if self.held else "MISSED"

    def cells(self) -> list[str]:
        spread = "" if self.repeats < 2 else f"{self.low:.3g} to {self.high:.3g}"
        return [
            self.case,
            self.name,
            quantity(self.ours, self.unit),
            "" if self.theirs is None else quantity(self.theirs, self.unit),
            f"{self.ratio:.3g}" if self.ratio < 1000 else f"{self.ratio:,.0f}",
            spread,
            self.wanted,
            self.verdict,
        ]


@dataclass(frozen=True)
class Options:
    """What a case is told."""

    full: bool = False
    smollm2: Path | None = None
    skip: Callable[[str], object] = print
    """Says in one line what could not be measured."""


@dataclass
class Report:
    full: bool = False
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        return all(finding.held for finding in self.findings)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        content = json.loads(text)
        findings = [Finding(**row) for row in content.pop("findings")]
        return cls(findings=findings, **content)

    def to_markdown(self) -> str:
        lines = [self._title(), ""]
        heads = [*(name or "held" for name in _COLUMNS), "note"]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for finding in self.findings:
            lines.append(f"| {' | '.join([*finding.cells(), finding.note])} |")
        lines += ["", *(f"- {reason}" for reason in self.skipped)]
        return "\n".join(lines).rstrip() + "\n"

    def _title(self) -> str:
        kind = "full" if self.full else "quick"
        versions = ", ".join(f"{k} {v}" for k, v in self.machine.get("versions", {}).items())
        rate = self.machine.get("matmul_gflops", 0)
        return f"{kind} run, {self.machine.get('cpus')} cores, {rate:.0f} GFLOP/s; {versions}"

    def draw(self) -> Figure:
        """Bars of ratios from 1, the targets as marks."""
        shown = self.findings[::-1]
        height = 1 + 0.16 * len(shown)
        with styled_axes(None, width=2.2 * COLUMN_WIDTH, height=height) as ax:
            for at_least, color in zip((True, False), palette(2), strict=False):
                rows = [i for i, finding in enumerate(shown) if finding.at_least is at_least]
                if not rows:
                    continue
                ax.barh(
                    rows,
                    [shown[i].ratio - 1 for i in rows],
                    left=1,
                    height=0.6,
                    color=color,
                    label="more is better" if at_least else "less is better",
                )
            aimed = [(x.target, i) for i, x in enumerate(shown) if x.target is not None]
            if aimed:
                ax.plot(*zip(*aimed, strict=True), "|k", ms=7, mew=1.4, label="target")
            for i, x in enumerate(shown):
                ax.plot([x.low, x.high], [i, i], color="0.3", lw=0.8)
            ax.axvline(1, color="0.3", lw=0.6)
            ax.set_xscale("log")
            ax.set_yticks(range(len(shown)), [f"{x.name}  {x.case}" for x in shown])
            ax.grid(False, axis="y")
            ax.set_axisbelow(True)
            ax.set_ylim(-0.7, len(shown) - 0.3)
            ax.set_xlabel("ratio within a round: median, least and greatest")
            ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
        return ax.figure

    def save(self, folder: Path, *, figures: Sequence[str] = ()) -> None:
        """Write what there is; `figures` are formats."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.json").write_text(self.to_json())
        (folder / "bench.md").write_text(self.to_markdown())
        if figures and self.findings:
            figure = self.draw()
            for kind in figures:
                figure.savefig(folder / f"bench.{kind}", dpi=200)
            plt.close(figure)


def machine(rate: float) -> dict[str, Any]:
    """Where the numbers come from."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "cpus": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "matmul_gflops": round(rate / 1e9, 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def quantity(value: float, unit: str) -> str:
    """A value with its unit, in a scale that people read."""
    if unit == "s" and value < 1:
        return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{digits} {unit}".rstrip()


def print_row(console: Console, finding: Finding, *, header: bool) -> None:
    """One row as it comes in: a table of its own whose columns are as wide as all others'."""
    table = Table(box=None, show_header=header, pad_edge=False)
    for name, width in _COLUMNS.items():
        right = name in ("ours", "theirs", "ratio", "target")
        table.add_column(name, width=width, justify="right" if right else "left")
    style = "" if finding.held else "bold red"
    table.add_row(*finding.cells(), style=style)
    console.print(table)
    if finding.note:
        console.print(f"      {finding.note}", style="dim", highlight=False)


def compare(
    case: str,
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str = "s",
    target: float | None = None,
    at_least: bool = True,
    note: str = "",
    limit_share: float | None = None,
    equal: bool = True,
) -> Finding:
    """From the rounds of both: theirs over ours where more is better, else ours over theirs."""
    ratio = paired(theirs, ours) if at_least else paired(ours, theirs)
    return Finding(
        case=case,
        name=name,
        ours=median(ours),
        theirs=median(theirs),
        unit=unit,
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        repeats=len(ours),
        target=target,
        at_least=at_least,
        note=note,
        limit_share=limit_share,
        equal=equal,
    )


def alone(
    case: str,
    name: str,
    values: Sequence[float],
    *,
    unit: str = "",
    target: float | None = None,
    at_least: bool = True,
    note: str = "",
) -> Finding:
    """A share or an exponent: it has nothing beside it, and is its own ratio."""
    return Finding(
        case=case,
        name=name,
        ours=median(values),
        theirs=None,
        unit=unit,
        ratio=median(values),
        low=min(values),
        high=max(values),
        repeats=len(values),
        target=target,
        at_least=at_least,
        note=note,
    )


def failures(findings: Sequence[Finding]) -> list[str]:
    return [f"{x.case} {x.name}: {x.verdict}" for x in findings if not x.held]
