"""What training many seeds at once gains over a plain loop, one seed after another.

    python benchmarks/training.py --seeds 8 --repeats 15

The task is argmax retrieval with sets of 5 to 16 items, batch 128, width 128, no variant. The plain
loop is what one writes first: `nn.Linear` for keys and values of every item, AdamW, clipping. Both
begin with the same weights and draw the same sets from the same task; equal losses first, then at
least 3 times as fast by seed and step. The share says how much of the machine's rate of products
(measured at 2048 x 2048 in the same run) each reaches with the products that it makes.
"""

import argparse
from collections.abc import Callable

import torch
from measure import alternate
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from llmprobe.synthetic.network import SetNetwork
from llmprobe.synthetic.optimizer import SeedAdamW
from llmprobe.synthetic.sets import SetTraining
from llmprobe.synthetic.tasks import find_task
from llmprobe.synthetic.training import take_step

SPEEDUP = 3.0
BATCH, WIDTH = 128, 128
LENGTHS = range(5, 17)
TASK = find_task("argmax")
RATE, DECAY, CLIP = 1e-3, 1e-3, 1.0


class Plain(nn.Module):
    """The network of one seed as a textbook writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.items = _mlp(TASK.item_size, WIDTH, bias=False)
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


def _mlp(inputs: int, outputs: int, *, bias: bool = True) -> nn.Sequential:
    first = nn.Linear(inputs, WIDTH, bias=bias)
    return nn.Sequential(first, nn.GELU(), nn.Linear(WIDTH, outputs))


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
        for length in LENGTHS:
            drawn = [TASK.sample(BATCH, length, generator) for generator in own]
            tokens, labels = (torch.cat(x) for x in zip(*drawn, strict=True))
            losses, _ = take_step(training, network, optimizer, (tokens, labels), step=0)
        return losses

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    # For both: as attention sharpens, the plain loop is more than twice as slow with denormals.
    torch.set_flush_denormal(True)

    training = SetTraining(
        task=TASK.name,
        seeds=tuple(range(arguments.seeds)),
        width=WIDTH,
        learning_rate=RATE,
        weight_decay=DECAY,
        clip=CLIP,
    )
    network = training.new_network()
    rounds = {"plain loop": plain_loop(network), "lab": lab(network, training)}
    n_steps = arguments.seeds * len(LENGTHS)
    flops, losses = {}, {}
    for name, run in rounds.items():
        with FlopCounterMode(display=False) as counter:
            losses[name] = run()
        flops[name] = counter.get_total_flops()
    difference = float((losses["lab"] / losses["plain loop"] - 1).abs().max())

    square = torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0))
    timing = alternate({**rounds, "matmul": lambda: square @ square}, rounds=arguments.repeats)
    rate = 2 * 2048**3 / timing["matmul"].median
    threads = torch.get_num_threads()
    print(f"product of 2048 x 2048  {rate / 1e9:9.1f} GFLOP/s with {threads} threads")
    for name in rounds:
        step = [1e3 * t / n_steps for t in (timing[name].median, timing[name].low)]
        share = flops[name] / timing[name].median / rate
        print(
            f"{name:<22}  {step[0]:9.4f} ms a seed and step (best {step[1]:.4f}), "
            f"{flops[name] / n_steps / 1e6:.0f} MFLOP, {share:.1%} of that rate"
        )
    ratio = timing["plain loop"].median / timing["lab"].median
    print(f"largest difference      {difference:9.1e} of the losses    (limit 1e-3)")
    print(f"times as fast           {ratio:9.2f}    (at least {SPEEDUP})")
    raise SystemExit(ratio < SPEEDUP or difference > 1e-3)


if __name__ == "__main__":
    main()
