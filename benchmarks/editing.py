"""Case i: what an edit costs over the bare forward of the same batch.

A scale of the logits of all queries, and a gain on all head outputs, both by the number of keys
that a token sees, in all layers.
"""

from collections.abc import Iterator

import numpy as np
import torch
from measure import alternate
from report import Finding, Options, compare
from scipy.stats import bootstrap
from shapes import build, prompt
from torch import Tensor

from llmprobe import edit_attention, scale_logits, scale_outputs
from llmprobe.base.machine import memory_kept
from llmprobe.base.temperatures import log_scaling

FORWARD = 1.05
LENGTH, N_PROMPTS, TRAINED = 1024, 2, 256


def colder(n: Tensor) -> Tensor:
    return log_scaling(n, trained=TRAINED)


def louder(n: Tensor) -> Tensor:
    return (n / TRAINED).clamp(min=1) ** 0.1


def run(options: Options) -> Iterator[Finding]:
    model = build("smollm2", None if options.full else 8, options.smollm2)
    tokens = prompt(model, LENGTH, N_PROMPTS)
    edits = {
        "scaled logits": {"queries": scale_logits(colder)},
        "gains of head outputs": {"outputs": scale_outputs(louder)},
    }

    def bare() -> None:
        model.model(tokens, use_cache=False)

    for name, edit in edits.items():

        def edited(edit: dict[str, object] = edit) -> None:
            with edit_attention(model, **edit):  # type: ignore[arg-type]
                model.model(tokens, use_cache=False)

        with torch.inference_mode(), memory_kept():
            rounds = 100 if options.full else 20
            timing = alternate({"bare": bare, "edited": edited}, rounds=rounds, warm_up=2)
        ours, theirs = timing["edited"].times, timing["bare"].times
        ratios = np.divide(ours, theirs)
        ends = bootstrap((ratios,), np.median, rng=np.random.default_rng(0)).confidence_interval
        yield compare(
            "i",
            f"SmolLM2, {model.config.num_hidden_layers} layers: {name} over forward",
            ours,
            theirs,
            target=FORWARD,
            at_least=False,
            note=f"95 % interval of the median {ends.low:.3f} to {ends.high:.3f}; {N_PROMPTS} "
            f"prompts of {LENGTH} tokens",
        )
