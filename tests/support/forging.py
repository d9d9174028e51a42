"""Folders of runs that were stopped, and ways to spoil their files."""

import shutil
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from attack import FEW, MANY, call, patched, training, variance
from families import tiny

from llmprobe import probe_variance
from llmprobe.probes.sweeps import Sweep


class Stopped(Exception):
    pass


@contextmanager
def stopping(after):
    """Stop a probe after so many pieces; what is given does it to a training's progress."""
    run, left = Sweep.run, [after]

    def count(*_):
        if left[0] is not None:
            if not left[0]:
                raise Stopped
            left[0] -= 1

    def counted(*args, **options):
        count()
        run(*args, **options)

    with patched(Sweep, run=counted):
        yield count


@cache
def workshop():
    return Path(tempfile.mkdtemp(prefix="llmprobe-attack-"))


def remove_workshop():
    shutil.rmtree(workshop())
    for made in (template, model_folder, workshop):
        made.cache_clear()


@cache
def template(kind, seed, stop):
    """A run's folder, stopped after some pieces; None is one that is finished."""
    folder = workshop() / f"{kind}-{seed}-{stop}"
    # One that is finished has few prompts, so that there are more to ask for.
    setting = variance(seed, FEW if stop is None else MANY)
    if kind == "training":
        setting = training(seed)
    with suppress(Stopped), stopping(stop) as count:
        call(setting, folder, progress=count if kind == "training" else False)
    return setting, folder


@cache
def model_folder(stop):
    """The same for the tiny Llama."""
    folder = workshop() / f"model-{stop}"
    with suppress(Stopped), stopping(stop):
        probe_variance(tiny("llama"), "4,8", n_prompts=FEW, batch_tokens=16, output=folder)
    return folder


WAYS = (
    *("over", "foreign", "flip", "cut", "swap", "empty", "folder"),
    *("link", "dangling", "longer", "remove"),
)


def forge(case, folder, stranger, targets):
    """Do to one of the files what the case says."""
    paths = sorted(path for pattern in targets for path in folder.glob(pattern))
    path, other = (paths[case[name] % len(paths)] for name in ("file", "other"))
    content = bytearray(path.read_bytes())
    match case["way"]:
        case "over":
            path.write_bytes(other.read_bytes())
        case "foreign":
            theirs = stranger / path.relative_to(folder)
            same_kind = sorted(p for pattern in targets for p in stranger.glob(pattern))
            from_there = theirs if theirs.exists() else same_kind[case["other"] % len(same_kind)]
            path.write_bytes(from_there.read_bytes())
        case "flip":
            bit = case["bit"] % (8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[: case["bit"] % len(content)])
        case "swap":
            theirs = other.read_bytes()
            other.write_bytes(content)
            path.write_bytes(theirs)
        case "empty":
            path.write_bytes(b"")
        case "folder":
            path.unlink()
            path.mkdir()
        case "link":
            if path != other:
                path.unlink()
                path.symlink_to(other.name)
        case "dangling":
            path.unlink()
            path.symlink_to("nowhere")
        case "longer":
            path.write_bytes(bytes(content) + content[: case["bit"] % len(content)])
        case "remove":
            path.unlink()
