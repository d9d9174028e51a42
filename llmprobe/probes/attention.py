"""Where attention looks as prompts get longer, and how much of the variance that explains.

    result = probe_attention("builtin", "16..1024")
    result.to_frame(), result.plot("weights"), result.plot("prediction")

If a head's weights and its values were independent, and values at different tokens uncorrelated,
the variance of its output would be the values' variance times E[Σa²]: dispersion alone decides.
The prediction stands beside the measured variance, so that one sees for which heads this holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.files import as_path
from llmprobe.capture.calls import AttentionCall, listening
from llmprobe.capture.discovery import LayerChoice
from llmprobe.capture.loading import LoadedModel
from llmprobe.capture.outputs import capture_attention
from llmprobe.capture.rows import Rows, capture_rows
from llmprobe.probes.request import DEFAULT_LENGTHS, Prepared, prepare
from llmprobe.probes.sweeps import Consume, SweepPlan
from llmprobe.probes.tallies import AttentionTally
from llmprobe.probes.units import run_units
from llmprobe.results.attention import AttentionResult

_N_TOP = 16


def probe_attention(
    model: str | nn.Module | LoadedModel = "builtin",
    lengths: str | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    prompts: str = "random",
    text: str | Path | None = None,
    dataset: str | None = None,
    samples: int = 64,
    query: str = "free",
    bos: str = "auto",
    seed: int = 0,
    batch_tokens: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    on_plan: Callable[[SweepPlan], object] = lambda plan: None,
    advance: Callable[[int], object] = lambda n_tokens: None,
) -> AttentionResult:
    """Probe the attention row of each prompt's last token, by head; arguments as in
    `probe_variance`."""
    arguments = dict(locals())
    folder = None if output is None else as_path("output", output)
    ready = prepare(model, arguments, tokenizer)
    numbers = [layer.layer for layer in ready.layers]

    def consume(tally: AttentionTally) -> Consume:
        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, _Seen]]
        ) -> None:
            for number in numbers:
                seen = parts[0][number]
                tally.update(number, seen.rows, seen.heads, seen.values, indices)

        return take

    result = run_units(
        ready,
        kind="attention",
        output=folder,
        overwrite=overwrite,
        observe=lambda positions: _observe(ready, positions),
        consume=consume,
        may_chunk=lambda: False,  # rows and values are wanted of the whole prompt at once
        on_plan=on_plan,
        advance=advance,
    )
    assert isinstance(result, AttentionResult)
    return result


@dataclass(frozen=True)
class _Seen:
    """What one forward showed of one layer."""

    rows: Rows
    heads: Tensor
    """(prompts, lengths, heads, head size)"""
    values: tuple[Tensor, Tensor] | None
    """Mean over tokens of the values and of their squares: (prompts, lengths, KV heads, size)."""


@contextmanager
def _observe(ready: Prepared, positions: list[int]) -> Iterator[Mapping[int, _Seen]]:
    numbers = [layer.layer for layer in ready.layers]
    by_module = {
        id(ready.model.get_submodule(layer.path)): layer.layer
        for layer in ready.layers
        if layer.interface
    }
    modules = [ready.model.get_submodule(layer.path) for layer in ready.layers if layer.interface]
    values: dict[int, tuple[Tensor, Tensor]] = {}
    # Once a forward and not in each layer: a copy to a GPU waits for what it has to do.
    index: dict[torch.device, Tensor] = {}

    def listen(call: AttentionCall) -> None:
        device = call.value.device
        if device not in index:
            index[device] = torch.tensor(positions, device=device)
        values[by_module[id(call.module)]] = _value_moments(call.value, index[device])

    seen: dict[int, _Seen] = {}
    with ExitStack() as stack:
        heads = stack.enter_context(
            capture_attention(ready.model, numbers, positions=positions, at="heads", stop=True)
        )
        stack.enter_context(listening(modules, listen))
        rows = stack.enter_context(
            capture_rows(ready.model, numbers, positions=positions, k=_N_TOP)
        )
        yield seen
    for number in numbers:
        seen[number] = _Seen(rows[number], heads[number], values.get(number))


def _value_moments(value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Means of values (prompts, KV heads, tokens, size) up to each of the positions `index`."""
    if value.device.type == "mps":  # has no float64
        value, index = value.cpu(), index.cpu()
    x = value.double().movedim(2, 1)
    counts = (index + 1).view(1, -1, 1, 1)
    return x.cumsum(1)[:, index] / counts, x.square().cumsum(1)[:, index] / counts
