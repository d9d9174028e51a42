"""The plan of a probe from the model's config alone, before any weight is loaded.

plan = plan_probe(VarianceProbe, "meta-llama/Llama-3.1-8B", VarianceRequest(lengths="16..16k"))
plan.describe()
"""

from pathlib import Path
from typing import Unpack

from llmprobe.base.machine import resolve_device
from llmprobe.capture.discovery import choose_layers
from llmprobe.capture.kinds import is_encoder
from llmprobe.capture.outlines import load_outline, outline_layers
from llmprobe.probes.before import check_asked
from llmprobe.probes.probe import LoadOptions, Probe, start
from llmprobe.probes.prompts import OWN, Prompts
from llmprobe.probes.request import Request, batch_tokens, check_positions
from llmprobe.probes.sweeps import SweepPlan, plan_sweep
from llmprobe.probes.texts import read_text
from llmprobe.runs.folder import check_probe


def plan_probe(
    kind: type[Probe],
    model: str,
    asked: Request,
    *,
    output: Path | None = None,
    overwrite: bool = False,
    **load: Unpack[LoadOptions],
) -> SweepPlan:
    """What `start` would plan. A model that does not declare its attention is loaded after all,
    and so is one whose tokenizer has to tell how long your own prompts are.

    That a model gives for short prompts what it gives for the beginnings of long ones is assumed.
    """
    asked = asked.for_model(model)
    lengths = asked.check()
    if asked.text is not None:
        read_text(asked.text)
    if output is not None and not overwrite:
        check_asked(check_probe(output, overwrite=overwrite), kind.tally.kind, model, asked)
    outline = load_outline(model, **load)
    every = outline_layers(outline.model)
    if every is None or asked.kind == OWN:
        return start(kind, model, asked, **load).plan
    check_positions(outline, lengths)
    # Prompts with answers are no beginnings of longer ones; an encoder's outputs see what follows.
    beginnings = not Prompts.kinds[asked.kind].has_answers()
    beginnings = beginnings and not is_encoder(outline.model.config)
    beginnings = beginnings and outline.part in (None, "decoder")
    branches = asked.query != "free" and kind.branches
    one_pass = (beginnings and (asked.query == "free" or branches)) or len(lengths) == 1
    plan = plan_sweep(
        outline.model,
        choose_layers(every, asked.layers),
        lengths,
        n_prompts=asked.n_prompts,
        one_pass=one_pass,
        batch_tokens=batch_tokens(outline, asked),
        chunk=getattr(asked, "chunk", None),
        every=every,
        device=resolve_device(load.get("device", "auto")),
        keeps_keys=branches and one_pass and len(lengths) > 1,
    )
    return asked.planned(plan)
