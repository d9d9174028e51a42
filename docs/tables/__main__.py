"""Write the tables of the documents from saved results, so that no number is typed by hand.

    python docs/tables          # or: make tables

A table stands in a document between two marks, and this script replaces what is between them:

    <!-- table: argmax -->
    <!-- end -->

`claims.py`, `findings.py`, `front.py`, ... have one function per table: its name is
the mark, its numbers come from the folders in `figures/` or from `benchmarks/baseline.json`. A test
runs this and compares the documents byte for byte. Verdicts follow one rule: `verdict` in
`llmprobe/base/intervals.py`.
"""

from pathlib import Path

import claims  # noqa: F401  # registers its tables
import findings  # noqa: F401
import front  # noqa: F401
import norm_runs  # noqa: F401
import other_models  # noqa: F401
import related  # noqa: F401
from cells import TABLES

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "figures/README.md", "benchmarks/README.md")


def fill(text: str, root: Path = ROOT) -> str:
    """The document with every table written anew from the results below `root`."""
    first, *parts = text.split("<!-- table: ")
    done = [first]
    for part in parts:
        name, _, rest = part.partition(" -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if name not in TABLES or not end:
            raise ValueError(f"table {name!r} is unknown or has no end")
        done.append(f"{name} -->\n{TABLES[name](root)}{end}{after}")
    return "<!-- table: ".join(done)


def main() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(fill(path.read_text()))


if __name__ == "__main__":
    main()
