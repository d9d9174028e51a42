"""Joining results of the same settings, with other seeds or at other lengths, into one.

    merge_results(["runs/seed-0", "runs/seed-1"], "runs/both")

Probes are joined by their evidence, trainings by what their folders keep of every piece, or by the
saved numbers where these are all of it: the result is that of one run that did everything, up to
the order of additions. Together the folders have to fill a table, every seed at every length, and
none twice.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from llmprobe.base.files import as_path
from llmprobe.results.base import Also, Result
from llmprobe.results.opening import load_result


def merge_results(
    folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False
) -> Result:
    """Join saved results into one and save it in the folder `output`, without figures."""
    places = [as_path("folder", folder) for folder in folders]
    if len({place.resolve() for place in places}) < max(len(places), 2):
        came = ", ".join(map(str, places)) or "none"
        raise ValueError(f"merge: got {came}; accepted: two or more different folders")
    kinds = {type(load_result(place)): place for place in places}
    if len(kinds) > 1:
        told = ", ".join(f"{place} ({kind.kind})" for kind, place in kinds.items())
        raise ValueError(f"merge: got {told}; accepted: results of one kind")
    (kind,) = kinds
    result: Result
    write: Also
    result, write = import_module(kind.joins).join(places)
    result.save(output, overwrite=overwrite, also=write)
    return result
