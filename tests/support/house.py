"""The rows of the house: which folder may use which."""

ROWS = [
    {"errors"},
    {"base"},
    {"capture", "results"},
    {"runs"},
    {"probes", "synthetic"},
    {"commands", "cli"},
]
"""Lower rows first. A folder uses those below it; inside a folder there is no cycle."""


def folder_of(module: str) -> str:
    return module.split(".")[0]


def row_of(module: str) -> int:
    return next(number for number, row in enumerate(ROWS) if folder_of(module) in row)
