"""Case e: what training many seeds at once gains over a plain loop, one seed after another.

The task is argmax retrieval with sets of 5 to 16 items, batch 128, width 128, no variant; 8 seeds,
and as many as the lab takes at once. The plain loop is what one writes first: `nn.Linear` for keys
and values of every item, AdamW, clipping. Both begin with the same weights and draw the same sets
from the same task; equal losses first, then the time of a round in which each seed takes a step at
each length. The share says how much of the machine's rate of products each reaches with the
products that it makes, and the note where the time of the lab's step goes. Then the forward of an
evaluation: one seed on its longest test sets.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from measure import alternate, matmul_rate
from report import Finding, Options, compare
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from llmprobe.base.machine import memory_kept, old_objects_left_alone
from llmprobe.synthetic.layers import no_drop
from llmprobe.synthetic.optimizer import SeedAdamW, clip_by_seed
from llmprobe.synthetic.plan import STACK
from llmprobe.synthetic.set_network import SetNetwork
from llmprobe.synthetic.set_plan import SetTraining
from llmprobe.synthetic.tasks import SetTask
from llmprobe.synthetic.training import take_step

SPEEDUP = 4.0
TOLERANCE = 1e-3
BATCH, WIDTH = 128, 128
LENGTHS = range(5, 17)
LONG, LONG_SETS = 16_384, 8
TASK = SetTask.named("argmax")
RATE, DECAY, CLIP = 1e-3, 1e-3, 1.0


class Plain(nn.Module):
    """The network of one seed as a textbook writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.items = _mlp(TASK.item_size, WIDTH)
        self.query = _mlp(TASK.query_size, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.readout = _mlp(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.items(TASK.items(tokens[:, :-1]))
        q = self.q(self.query(TASK.query(tokens[:, -1:])))
        weights = (q @ self.k(x).mT / WIDTH**0.5).softmax(dim=-1)
        return self.readout(weights @ self.v(x))[:, 0]

    def copy(self, network: SetNetwork) -> None:
        """The weights of a network of one seed."""
        attention = network.attention
        pairs = {
            self.items[0]: network.items.first,
            self.items[2]: attention.i_proj,
            self.query[0]: network.query.first,
            self.query[2]: network.query.second,
            self.q: attention.q_proj,
            self.k: attention.k_proj,
            self.v: attention.v_proj,
            self.readout[0]: network.readout.first,
            self.readout[2]: network.readout.second,
        }
        for own, theirs in pairs.items():
            own.weight.data.copy_(theirs.weight[0].T)
            if own.bias is not None:
                own.bias.data.copy_(theirs.bias[0])


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.GELU(), nn.Linear(WIDTH, outputs))


def generators(n: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(n)]


def plain_loop(network: SetNetwork) -> Callable[[], Tensor]:
    """A round: each seed takes a step at each length. Gives the last losses."""
    models = []
    for index, generator in enumerate(generators(len(network.seeds))):
        model = Plain()
        model.copy(network.member(index))
        models.append(
            (model, torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY), generator)
        )

    def run() -> Tensor:
        losses = []
        for model, optimizer, generator in models:
            for length in LENGTHS:
                tokens, labels = TASK.sample(BATCH, length, generator)
                loss = F.cross_entropy(model(tokens), labels)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return run


def lab(network: SetNetwork, training: SetTraining) -> Callable[[], Tensor]:
    """The same round, all seeds at once."""
    own = generators(len(network.seeds))
    weights = dict(network.named_parameters())
    optimizer = SeedAdamW(weights, training.each("learning_rate"), training.weight_decay)

    def run() -> Tensor:
        with memory_kept(), old_objects_left_alone():  # as `train` does around its blocks
            for length in LENGTHS:
                drawn = [TASK.sample(BATCH, length, generator) for generator in own]
                tokens, labels = (torch.cat(x) for x in zip(*drawn, strict=True))
                losses, _ = take_step(training, network, optimizer, (tokens, labels), step=0)
        return losses

    return run


def shares_of_a_step(network: SetNetwork, training: SetTraining, steps: int = 12) -> str:
    """Where the time of the lab's step goes, as `take_step` does it."""
    weights = dict(network.named_parameters())
    optimizer = SeedAdamW(weights, training.each("learning_rate"), training.weight_decay)
    seconds: Counter[str] = Counter()
    with memory_kept(), old_objects_left_alone():
        batches = training.batches(0)
        for _ in range(steps):
            times = [time.perf_counter()]
            batch = next(batches)
            times.append(time.perf_counter())
            loss, _ = training.losses(network, batch, no_drop)
            times.append(time.perf_counter())
            optimizer.zero_grad()
            loss.sum().backward()
            times.append(time.perf_counter())
            clip_by_seed([weight.grad for weight in weights.values()], training.clip)
            optimizer.step(1.0)
            times.append(time.perf_counter())
            for name, start, end in zip(
                ("sampling", "forward", "backward", "optimizer"), times, times[1:], strict=False
            ):
                seconds[name] += end - start
    return ", ".join(f"{name} {s / seconds.total():.0%}" for name, s in seconds.items())


def run(options: Options) -> Iterator[Finding]:
    yield _evaluation(rounds=15 if options.full else 5)
    yield _compare(8, rounds=40 if options.full else 15, target=None)
    yield _compare(STACK, rounds=15 if options.full else 5, target=SPEEDUP)


def _evaluation(*, rounds: int) -> Finding:
    """A forward of the longest test sets, one after another as `evaluate` does it."""
    network = SetNetwork(TASK.name, width=WIDTH)
    model = Plain()
    model.copy(network)
    sets = TASK.sample(LONG_SETS, LONG, torch.Generator().manual_seed(0))[0].split(1)
    answers: dict[str, Tensor] = {}

    def plain() -> None:
        answers["plain"] = torch.cat([model(tokens) for tokens in sets])

    def ours() -> None:
        answers["lab"] = torch.cat([network(tokens).logits for tokens in sets])

    with torch.inference_mode(), memory_kept():
        timing = alternate({"plain": plain, "lab": ours}, rounds=rounds)
    difference = float((answers["lab"] - answers["plain"]).abs().max())
    each = 1e9 * timing["lab"].median / (LONG * LONG_SETS)
    return compare(
        "e",
        f"evaluating sets of {LONG:,} items: times as fast as a plain network",
        timing["lab"].times,
        timing["plain"].times,
        note=f"{each:.0f} ns an item; greatest difference of logits {difference:.0e}",
        equal=difference <= TOLERANCE,
    )


def _compare(n_seeds: int, *, rounds: int, target: float | None) -> Finding:
    training = SetTraining(
        task=TASK.name,
        seeds=tuple(range(n_seeds)),
        width=WIDTH,
        learning_rate=RATE,
        weight_decay=DECAY,
        clip=CLIP,
    )
    network = training.new_network()
    work = {"plain": plain_loop(network), "lab": lab(network, training)}
    flops, losses = {}, {}
    for name, one_round in work.items():
        with FlopCounterMode(display=False) as counter:
            losses[name] = one_round()
        flops[name] = counter.get_total_flops()
    difference = float((losses["lab"] / losses["plain"] - 1).abs().max())
    timing = alternate(work, rounds=rounds)
    rate = matmul_rate()
    step = 1e3 * timing["lab"].median / (n_seeds * len(LENGTHS))
    shares = {name: flops[name] / timing[name].median / rate for name in work}
    parts = shares_of_a_step(network, training)
    return compare(
        "e",
        f"training {n_seeds} seeds: times as fast as a plain loop",
        timing["lab"].times,
        timing["plain"].times,
        target=target,
        note=f"{step:.3f} ms a seed and step; shares of the machine's rate {shares['lab']:.0%} and "
        f"{shares['plain']:.0%}; of a step {parts}; relative difference of losses "
        f"{difference:.0e}",
        limit_share=shares["lab"],
        equal=difference <= TOLERANCE,
    )
