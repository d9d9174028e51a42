"""Has anything become slower? A new run against one that was kept.

    python benchmarks/check.py runs/bench/bench.json benchmarks/baseline.json

Ratios are compared, not seconds, so both runs need not be of one machine. What lost more than 20 %
in the direction that is worse, or is no longer there, is named, and the exit code is 1.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from report import Finding, Report
from rich.console import Console
from rich.table import Table

MOST_LOST = 0.2
BASELINE = Path(__file__).with_name("baseline.json")


@dataclass(frozen=True)
class Change:
    before: Finding
    after: Finding | None

    @property
    def lost(self) -> float | None:
        """The share of the ratio that was lost; below 0 if it was gained. None if it vanished."""
        if self.after is None:
            return None
        change = self.after.ratio / self.before.ratio
        return 1 - change if self.before.at_least else change - 1

    @property
    def bad(self) -> bool:
        return self.lost is None or self.lost > MOST_LOST


def changes(before: Report, after: Report) -> list[Change]:
    """One for each finding with a target that was there before."""
    found = {(finding.case, finding.name): finding for finding in after.findings}
    aimed = [finding for finding in before.findings if finding.target is not None]
    return [Change(old, found.get((old.case, old.name))) for old in aimed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("new", type=Path)
    parser.add_argument("baseline", type=Path, nargs="?", default=BASELINE)
    arguments = parser.parse_args()
    before, after = (
        Report.from_json(path.read_text()) for path in (arguments.baseline, arguments.new)
    )
    if before.full != after.full:
        parser.error("one run is full and one is quick: their lengths differ, so do their ratios")
    table = Table("case", "comparison", "before", "now", "lost", box=None, pad_edge=False)
    found = changes(before, after)
    for change in found:
        old, new = change.before, change.after
        table.add_row(
            old.case,
            old.name,
            f"{old.ratio:.3g}",
            "gone" if new is None else f"{new.ratio:.3g}",
            "" if change.lost is None else f"{change.lost:+.0%}",
            style="bold red" if change.bad else "",
        )
    console = Console()
    console.print(table)
    bad = [f"{change.before.case} {change.before.name}" for change in found if change.bad]
    for name in bad:
        console.print(f"worse: {name}", style="bold red", highlight=False)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
