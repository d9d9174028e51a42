"""A standing attack: generated cases, forked runs, and what a run must give undisturbed.

    report = attack("kills", cases, check, n=1000, seconds=60, seed=0)

`check` gets a case. It returns "equal" or "refused", or "skipped" for what is no case; or it
raises `Wrong`. A wrong case does not end
the attack: all are counted, and the smallest is searched for at the end.
"""

import dataclasses
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
from families import tiny
from hypothesis import HealthCheck, Phase
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from llmprobe import load_model, load_result, probe_attention, probe_variance, train_synthetic
from llmprobe.errors import LLMProbeError
from llmprobe.results.base import Result

FEW, MANY = 6, 10
"""Numbers of prompts. A folder that has few gets the missing ones."""
LEFTOVERS = (".partial", ".tmp", ".lock", ".holder", ".replaced")


class Wrong(AssertionError):
    """Neither the reference's numbers nor a refusal in one line."""


@dataclasses.dataclass
class Report:
    """What came of the cases of one class."""

    name: str
    seed: int
    counts: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"refused": 0, "equal": 0, "wrong": 0}
    )
    seconds: float = 0.0
    wrong: list[tuple[Any, str]] = dataclasses.field(default_factory=list)

    def line(self) -> str:
        n = sum(self.counts.values())
        rate = 60 * n / max(self.seconds, 1e-9)
        return (
            f"{self.name}: {n} cases, {self.counts['refused']} refusals, "
            f"{self.counts['equal']} equal results, {self.counts['wrong']} wrong "
            f"(seed {self.seed}, {rate:.0f} cases a minute)"
        )

    def told(self, most: int = 5) -> str:
        """The wrong cases, the smallest first."""
        found = sorted(self.wrong, key=lambda item: len(repr(item[0])))
        return "\n".join([self.line(), *(f"  {case}\n    {why}" for case, why in found[:most])])


_BLOCK = 500
"""Cases that are drawn at a time."""


def attack(
    name: str,
    cases: SearchStrategy[Any],
    check: Callable[[Any], str],
    *,
    n: int,
    seconds: float,
    seed: int,
    shrink: bool = False,
) -> Report:
    """Check up to `n` cases in about so many seconds.

    `shrink`: let hypothesis look for the smallest wrong case. It needs a check that gives the
    same answer each time, so not one that depends on the clock.
    """
    report, began = Report(name, seed), time.monotonic()
    options: dict[str, Any] = {"deadline": None, "database": None}
    options["suppress_health_check"] = list(HealthCheck)

    def outcome(case: Any) -> tuple[str, str]:
        try:
            return check(case), ""
        except Exception as error:  # whatever it is: a case is never allowed to raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = "" if isinstance(error, Wrong) else f" at {where.filename}:{where.lineno}"
            return "wrong", f"{type(error).__name__}: {error}{at}"

    def judge_one(case: Any) -> None:
        if time.monotonic() - began > seconds:
            return
        found, why = outcome(case)
        if found != "skipped":
            report.counts[found] += 1
        if found == "wrong":
            report.wrong.append((case, why))

    # In blocks: hypothesis draws all of its examples, also when the time is over.
    for start in range(0, n, _BLOCK):
        if time.monotonic() - began > seconds:
            break
        block = hypothesis.settings(
            phases=[Phase.generate], max_examples=min(_BLOCK, n - start), **options
        )
        hypothesis.seed(seed + start)(block(hypothesis.given(cases)(judge_one)))()
    report.seconds = time.monotonic() - began
    if report.wrong and shrink:
        end = time.monotonic() + seconds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                smallest = hypothesis.find(
                    cases,
                    lambda case: time.monotonic() < end and outcome(case)[0] == "wrong",
                    settings=hypothesis.settings(max_examples=n, **options),
                    random=random.Random(seed),
                )
                report.wrong.insert(0, (smallest, outcome(smallest)[1]))
            except (NoSuchExample, hypothesis.errors.HypothesisException):
                pass  # the time was over
    return report


# Runs and what they give undisturbed.


@cache
def model(name: str = "builtin") -> Any:
    return load_model("builtin") if name == "builtin" else tiny("llama", seed=int(name))


def call(setting: Mapping[str, Any], output: Path | None = None, **more: Any) -> Result:
    """Run what a setting asks for."""
    given = {name: value for name, value in setting.items() if name not in ("kind", "model")}
    if setting["kind"] == "training":
        small = {"seeds": 2, "width": 8, "batch": 4, "train_lengths": "2..4", "sets": 4}
        small |= {"lengths": "4,8", "variants": "baseline,ema"}
        return train_synthetic(**(small | given | more), output=output)
    probe = probe_variance if setting["kind"] == "variance" else probe_attention
    few = {"lengths": "4,8", "batch_tokens": 16}
    return probe(model(setting.get("model", "builtin")), **(few | given | more), output=output)


def variance(seed: int = 0, n_prompts: int = MANY, at: str = "heads") -> dict[str, Any]:
    return {"kind": "variance", "seed": seed, "n_prompts": n_prompts, "at": at}


def training(first_seed: int = 0, steps: int = 60) -> dict[str, Any]:
    return {"kind": "training", "first_seed": first_seed, "steps": steps}


def claimed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The setting that provenance or a configuration says a run had."""
    if "at" in arguments:
        return {"kind": "variance"} | {k: arguments[k] for k in ("seed", "n_prompts", "at")}
    return {"kind": "training", "first_seed": arguments["seeds"][0], "steps": arguments["steps"]}


def digest(result: Result) -> str:
    """Of every bit of a result, but for the second in which it was made."""
    sha = hashlib.sha256()
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name == "provenance":
            facts = dataclasses.asdict(value) | {"created": ""}
            value = json.dumps(facts, sort_keys=True)
        if isinstance(value, np.ndarray):
            sha.update(repr((field.name, value.dtype.str, value.shape)).encode())
            sha.update(value.tobytes())
        else:
            sha.update(f"{field.name} {json.dumps(value)}".encode())
    return sha.hexdigest()


def references(setting: Mapping[str, Any]) -> frozenset[str]:
    """Digests of what a setting gives undisturbed."""
    plain = {k: v for k, v in setting.items() if k != "overwrite"}
    return _references(json.dumps(plain, sort_keys=True))


@cache
def _references(text: str) -> frozenset[str]:
    setting = json.loads(text)
    found = {digest(call(setting))}
    if setting.get("n_prompts") == MANY:
        # Sums over few prompts and then the others are rounded in another order.
        with tempfile.TemporaryDirectory() as place:
            call(setting | {"n_prompts": FEW}, Path(place, "run"))
            found.add(digest(call(setting, Path(place, "run"))))
    return frozenset(found)


def judge(answer: Mapping[str, Any] | None, setting: Mapping[str, Any]) -> str:
    """Whether a run's answer is the reference's or a refusal in one line."""
    if answer is None:
        raise Wrong(f"{setting} ended without an answer")
    if "digest" in answer:
        if answer["digest"] not in references(setting):
            raise Wrong(f"{setting} gave other numbers than undisturbed")
        return "equal"
    if not answer["refusal"] or "\n" in answer["text"] or not answer["text"]:
        raise Wrong(f"{setting} raised {answer['error']}: {answer['text']} at {answer['at']}")
    return "refused"


def answer_of(function: Callable[[], Result]) -> dict[str, Any]:
    """A digest, or what was raised."""
    try:
        return {"digest": digest(function())}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        refusal = isinstance(error, LLMProbeError) or type(error) is ValueError
        return {
            "error": type(error).__name__,
            "text": str(error),
            "refusal": refusal,
            "at": f"{Path(where.filename).name}:{where.lineno}",
        }


def check_folder(folder: Path) -> None:
    """A folder has the result that its provenance claims, or a run that resumes to its own."""
    if (folder / "result.json").exists():
        result = load_result(folder)
        setting = claimed(result.provenance.arguments)
        if digest(result) not in references(setting):
            raise Wrong(f"the folder claims {setting} and has other numbers")
    elif (folder / "configuration.json").exists():
        told = json.loads((folder / "configuration.json").read_text())
        setting = claimed(told.get("arguments", told))
        if judge(answer_of(lambda: call(setting, folder)), setting) != "equal":
            raise Wrong(f"an unfinished run of {setting} does not resume")


def check_clean(place: Path) -> None:
    """Nothing is left next to what a run keeps."""
    left = [
        str(path.relative_to(place))
        for path in place.rglob("*")
        if path.name.endswith(LEFTOVERS) or path.name.startswith(LEFTOVERS)
    ]
    if left:
        raise Wrong(f"left over: {left}")


# Forked runs: everything is imported and loaded, so one costs tens of milliseconds.


class Forked:
    """A function that runs in a process of its own; `answer` is None where it was killed."""

    def __init__(self, function: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():  # threads of libraries, which the child does not use
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(reading)
                torch.set_num_threads(1)
                os.write(writing, json.dumps(function()).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._reading = reading

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def answer(self) -> Any:
        with os.fdopen(self._reading, "rb") as pipe:
            text = pipe.read()
        os.waitpid(self.pid, 0)
        return json.loads(text) if text else None


def kill_at(count: int, folder: Path) -> list[int]:
    """Have this process die before its `count`-th change of a file below `folder`.

    Gives a list with the number of changes so far. A hook of the interpreter cannot be taken back:
    only for forked processes.
    """
    seen, place = [0], str(folder)

    def step() -> None:
        seen[0] += 1
        if seen[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    changes = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "shutil.rmtree")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if (event in changes or written) and str(arguments[0]).startswith(place):
            step()

    fsync = os.fsync

    def counted(handle: int) -> None:
        step()
        fsync(handle)

    os.fsync = counted
    sys.addaudithook(hook)
    return seen


@contextmanager
def patched(target: Any, **values: Any) -> Any:
    """Attributes with other values for a while."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
