"""How the variance of attention outputs falls with the length of the prompt: the main job.

    result = probe_variance("builtin", "16..4096", at="heads")
    result.to_frame(), result.decay_frame(), result.plot()

What is computed from the captured outputs is in `tallies` and `summaries`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llmprobe.base.files import as_path
from llmprobe.capture.discovery import LayerChoice, attention_layers
from llmprobe.capture.loading import LoadedModel
from llmprobe.capture.outputs import capture_attention
from llmprobe.errors import OutOfMemoryError
from llmprobe.probes.prompts import DictionaryPrompts
from llmprobe.probes.request import DEFAULT_LENGTHS, Prepared, prepare
from llmprobe.probes.sweeps import Consume, Sweep, SweepPlan, Unit, chunks_agree
from llmprobe.probes.tallies import Tally, VarianceTally
from llmprobe.probes.units import run_units
from llmprobe.results.variance import VarianceResult


def probe_variance(
    model: str | nn.Module | LoadedModel = "builtin",
    lengths: str | Sequence[int] = DEFAULT_LENGTHS,
    *,
    layers: LayerChoice = 0,
    at: str = "output",
    prompts: str = "random",
    text: str | Path | None = None,
    dataset: str | None = None,
    samples: int = 64,
    query: str = "free",
    bos: str = "auto",
    component: int = 0,
    reference: int | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    on_plan: Callable[[SweepPlan], object] = lambda plan: None,
    advance: Callable[[int], object] = lambda n_tokens: None,
) -> VarianceResult:
    """Probe attention outputs at each prompt's last token, for prompts of many lengths.

    `model`: a hub id, folder, `.gguf` file or `builtin`; a loaded model; or any module that honors
    the attention contract. `layers`, `at`: as in `capture_attention`. `prompts`: random, unigram,
    text or dictionary; unigram and text want a `text` file or a `dataset`. `query="fixed"` ends
    every prompt in the same token (Proposition 1). `component` is the feature of Figure 1,
    `reference` the length that drifts are measured from, the shortest if None. With an `output`
    folder finished parts are kept there and the result is saved; the same call goes on where it was
    stopped, and one with more `samples` adds the missing prompts to a result. `on_plan` is given
    the plan before the sweep runs, `advance` the number of tokens as they are done.
    """
    arguments = dict(locals())
    folder = None if output is None else as_path("output", output)
    ready = prepare(model, arguments, tokenizer)
    if reference is not None and reference not in ready.lengths:
        raise ValueError(f"reference: got {reference}, accepted: one of {ready.lengths}")
    size = min(x.head_size if at == "heads" else x.hidden_size for x in ready.layers)
    if not 0 <= component < size:
        raise ValueError(f"component: got {component}, accepted: 0 to {size - 1}")
    numbers = [layer.layer for layer in ready.layers]

    def observe(positions: list[int]) -> Any:
        return capture_attention(ready.model, numbers, positions=positions, at=at, stop=True)

    @cache
    def whole_in_chunks() -> bool:  # beside the chosen layers, what follows them
        return chunks_agree(ready.model, ready.prompts, attention_layers(ready.model))

    def consume(tally: VarianceTally) -> Consume:
        def take(
            indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, Tensor]]
        ) -> None:
            for number in numbers:
                x = torch.cat([part[number] for part in parts], dim=1)
                tally.update(number, x, indices)

        return take

    result = run_units(
        ready,
        kind="variance",
        output=folder,
        overwrite=overwrite,
        observe=observe,
        consume=consume,
        may_chunk=lambda: chunks_agree(ready.model, ready.prompts, ready.layers),
        examine=lambda tally, unit: _examine(ready, tally, unit, whole_in_chunks),
        on_plan=on_plan,
        advance=advance,
    )
    assert isinstance(result, VarianceResult)
    return result


def _examine(ready: Prepared, tally: Tally, unit: Unit, may_chunk: Callable[[], bool]) -> None:
    """For dictionary prompts: how often the model's next token begins the right value.

    A sweep of its own, as that takes the whole model, and with it more memory.
    """
    prompts, length = ready.prompts, unit.lengths[-1]
    if not isinstance(prompts, DictionaryPrompts):
        return

    def take(
        indices: list[int], lengths: tuple[int, ...], parts: list[Mapping[int, Tensor]]
    ) -> None:
        right = parts[-1][-1] == prompts.answers(indices, length)
        tally.n_asked += len(indices)
        tally.n_right += int(right.sum())

    plan = ready.plan
    if plan.chunk is not None and not may_chunk():
        plan = replace(plan, chunk=None)
    sweep = Sweep(ready.model, prompts, plan, lambda _: _next_tokens(ready.model), may_chunk)
    try:
        sweep.run(replace(unit, lengths=(length,)), take)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"{error}; answers to dictionary prompts take all layers, other --prompts do not"
        ) from error


@contextmanager
def _next_tokens(model: nn.Module) -> Iterator[Mapping[int, Tensor]]:
    """The most likely tokens behind the last position, -1, of what is run in the block."""
    found: dict[int, Tensor] = {}

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"logits_to_keep": 1}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found[-1] = output.logits[:, -1].argmax(-1).cpu()

    handles = [
        model.register_forward_pre_hook(ask, with_kwargs=True),
        model.register_forward_hook(keep),
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
