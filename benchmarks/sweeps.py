"""Cases a and b: attention outputs of one prompt at every length, of layer 0 and of all layers.

Everybody sweeps the same model over the same tokens, each tool in a process of its own, in turns;
numbers must agree to 1e-4 before times count. A tool that does not survive the longest prompt (its
memory or its time ends) is compared at the lengths that it does survive, with llmprobe at the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from measure import matmul_rate
from numpy.typing import NDArray
from report import Finding, Options, alone, compare
from shapes import SHAPES, config, needed_flops
from ways import TOOLS, missing
from worker import Outcome, Worker

from llmprobe import parse_lengths

TOLERANCE = 1e-4
DISTURBED = 0.1
"""One starved sweep can take fifty times as long: a row says when others took more than this."""
LONG = 10.0
"""Seconds beside which what a first sweep pays once is nothing."""
SHORT = 1.0
"""Seconds below which one measurement says little."""
TITLES = {"llama_1b": "1B", "smollm2": "SmolLM2", "tiny": "tiny"}


@dataclass(frozen=True)
class Plan:
    case: str
    shape: str
    lengths: str
    all_layers: bool
    stop: bool
    """Whether the others stop early, or make their ordinary call."""
    n_layers: int | None = None
    tools: tuple[str, ...] = TOOLS
    together: bool = True
    """All processes at once, or one tool at a time where they do not fit the memory."""
    rounds: int = 1
    warm_up: bool = True
    """A whole sweep that does not count, unless it is a long one; if not, short prompts warm up."""
    patience: float = 60.0
    """Seconds for one sweep."""
    enough: float = 20.0
    """Seconds of theirs after which there are no more rounds."""
    target: float | None = None
    share_target: float | None = None

    @property
    def layers(self) -> list[int]:
        n_layers = self.n_layers or SHAPES[self.shape][2]
        return list(range(n_layers)) if self.all_layers else [0]

    @property
    def title(self) -> str:
        return f"{TITLES[self.shape]}, {'all layers' if self.all_layers else 'layer 0'}"


def layer_0(options: Options) -> Iterator[Finding]:
    """Case a."""
    full = options.full
    short = "16..8192" if full else "16..2048"
    plans = [
        Plan("a", "smollm2", short, False, True, rounds=5 if full else 3),
        Plan("a", "smollm2", short, False, False, warm_up=full, patience=300),
        Plan(
            "a",
            "llama_1b",
            "16..16384",
            False,
            True,
            n_layers=2,  # enough to stop early in
            rounds=3 if full else 2,
            enough=120 if full else 20,
            target=8,
            share_target=0.5,
        ),
        Plan(
            "a",
            "llama_1b",
            "16..16384" if full else "16..1024",
            False,
            False,
            together=False,
            warm_up=False,
            patience=1500 if full else 150,
            target=200,
        ),
    ]
    yield from run_plans(plans, options)


def all_layers(options: Options) -> Iterator[Finding]:
    """Case b."""
    full = options.full
    short = "16..8192" if full else "16..2048"
    plans = [
        Plan(
            "b",
            "smollm2",
            short,
            True,
            True,
            rounds=3 if full else 2,
            warm_up=full,
            patience=300,
            target=1.6,
        ),
        Plan(
            "b",
            "smollm2",
            short,
            True,
            False,
            rounds=2 if full else 1,
            warm_up=False,
            patience=300,
            target=2,
        ),
        Plan(
            "b",
            "llama_1b",
            "16..2048" if full else "16..512",
            True,
            True,
            tools=TOOLS if full else ("hooks",),
            together=False,
            rounds=2,
            enough=120 if full else 20,
            patience=300,
            target=1.6,
            share_target=0.6,
        ),
    ]
    if full:
        plans.append(
            Plan(
                "b",
                "llama_1b",
                "16..2048",
                True,
                False,
                together=False,
                warm_up=False,
                patience=600,
                target=2,
            )
        )
    yield from run_plans(plans, options)


@dataclass
class Contest:
    """One tool against llmprobe, as far as it went."""

    way: str
    lengths: list[int]
    """The longest first: what does not fit fails at once."""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Share of the machine that other work took in each round."""
    difference: float = 0.0
    reason: str = ""
    """Why it went no further."""


class Crew:
    """The processes, one for each tool and model; a process that was closed starts when asked."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.workers: dict[tuple[str, int | None, str], Worker] = {}

    def worker(self, plan: Plan, tool: str) -> Worker:
        # Hooks are of plain transformers, as are ours: one process has both.
        key = (plan.shape, plan.n_layers, "hooks" if tool == "llmprobe" else tool)
        if key not in self.workers:
            path = self.options.smollm2 if plan.shape == "smollm2" else None
            self.workers[key] = Worker(plan.shape, n_layers=plan.n_layers, path=path)
        return self.workers[key]

    def make_room(self, plan: Plan, tools: Sequence[str]) -> None:
        """End the processes that these tools and llmprobe do without."""
        needed = [self.worker(plan, tool) for tool in ("llmprobe", *tools)]
        for worker in self.workers.values():
            if worker not in needed:
                worker.close()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def run_plans(plans: Sequence[Plan], options: Options) -> Iterator[Finding]:
    with closing(Crew(options)) as crew:
        for plan in plans:
            yield from _run_plan(plan, crew)


def _run_plan(plan: Plan, crew: Crew) -> Iterator[Finding]:
    tools = []
    for tool in plan.tools:
        reason = missing(tool)
        if reason is None:
            tools.append(tool)
        else:
            crew.options.skip(reason)
    contests = []
    for group in [tools] if plan.together else [[tool] for tool in tools]:
        crew.make_room(plan, group)
        for contest in _run_group(plan, crew, group):
            contests.append(contest)
            real = plan.shape == "smollm2" and crew.options.smollm2 is not None
            yield _finding(plan, contest, "real weights" if real else "random weights")
    if plan.share_target is not None and contests:
        best = max(contests, key=lambda contest: len(contest.lengths))
        yield alone(
            plan.case,
            f"{plan.title}: llmprobe's share of the machine's rate",
            best.shares,
            target=plan.share_target,
            note=f"FLOPs that one pass needs, lengths to {max(best.lengths)}",
        )


def _run_group(plan: Plan, crew: Crew, tools: Sequence[str]) -> list[Contest]:
    plain = crew.worker(plan, "llmprobe")
    contests: dict[str, Contest] = {}
    for tool in tools:
        way = f"{tool}, early stop" if plan.stop else tool
        contest = Contest(way, sorted(parse_lengths(plan.lengths), reverse=True))
        if _first(plan, contest, plain, crew.worker(plan, tool)):
            contests[tool] = contest
        else:
            crew.options.skip(f"{plan.title}: {way}: {contest.reason}")
    for _ in range(plan.rounds):
        for tool, contest in contests.items():
            if len(contest.ours) >= plan.rounds or sum(contest.theirs) > plan.enough:
                continue
            theirs = crew.worker(plan, tool).ask(
                contest.way, contest.lengths, plan.layers, patience=2 * plan.patience
            )
            ours = _ours(plan, contest, plain)
            if theirs is not None:  # it survived before: a busy machine, a round that is not one
                _count(plan, contest, ours, theirs)
    return [contest for contest in contests.values() if contest.ours]


def _first(plan: Plan, contest: Contest, plain: Worker, worker: Worker) -> bool:
    """Find how far the tool goes, and whether its numbers are ours."""
    while len(contest.lengths) > 1:
        worker.ask(contest.way, contest.lengths[-3:], plan.layers)
        theirs = worker.ask(contest.way, contest.lengths, plan.layers, patience=plan.patience)
        if theirs is not None:
            plain.ask("llmprobe", contest.lengths[-3:], plan.layers)
            ours = _ours(plan, contest, plain)
            contest.difference = relative_difference(ours.numbers, theirs.numbers)
            if not plan.warm_up or theirs.seconds > LONG:
                _count(plan, contest, ours, theirs)
            return True
        contest.reason = f"at {contest.lengths[0]} tokens: {worker.reason}"
        contest.lengths = contest.lengths[1:]
    return False


def _ours(plan: Plan, contest: Contest, plain: Worker) -> Outcome:
    """Typical of five where it is short: beside what takes a thousand times as long, one round is
    all there is."""
    times = [plain.need("llmprobe", contest.lengths, plan.layers)]
    while len(times) < 5 and times[0].seconds < SHORT:
        times.append(plain.need("llmprobe", contest.lengths, plan.layers))
    return sorted(times, key=lambda outcome: outcome.seconds)[len(times) // 2]


def _count(plan: Plan, contest: Contest, ours: Outcome, theirs: Outcome) -> None:
    contest.ours.append(ours.seconds)
    contest.theirs.append(theirs.seconds)
    contest.others.append(max(ours.others, theirs.others))
    needed = needed_flops(
        config(plan.shape), max(contest.lengths), len(contest.lengths), len(plan.layers)
    )
    contest.shares.append(needed / matmul_rate(3) / ours.seconds)


def _finding(plan: Plan, contest: Contest, weights: str) -> Finding:
    lengths = f"{weights}, lengths {min(contest.lengths)} to {max(contest.lengths)}"
    further = f"; no further: {contest.reason}" if contest.reason else ""
    if max(contest.others) > DISTURBED:
        further += f"; DISTURBED: other work took up to {max(contest.others):.0%} of the machine"
    return compare(
        plan.case,
        f"{plan.title}: times as fast as {contest.way}",
        contest.ours,
        contest.theirs,
        target=plan.target,
        note=f"{lengths}, relative difference {contest.difference:.0e}{further}",
        limit_share=float(np.median(contest.shares)),
        equal=contest.difference <= TOLERANCE,
    )


def relative_difference(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Root mean square over the last axis, relative to what is expected; the worst of all."""
    if got.shape != expected.shape:
        return float("inf")
    error = np.square(got.astype(np.float64) - expected).mean(axis=-1)
    size = np.square(expected.astype(np.float64)).mean(axis=-1)
    return float(np.sqrt(error / size).max())
