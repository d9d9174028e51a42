"""The lab: train small networks on a task, many seeds of each, and measure them by length.

    result = train_synthetic("argmax", ["baseline", "layernorm"], seeds=8)
    result = train_synthetic("othello", preset="desk")
    result = search_synthetic("set-complement", 64)
    result = search_synthetic("argmax", 64, variant="layernorm,headnorm")
    result.plot()

With an output folder every finished piece is kept, and the same call resumes where it stopped.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from llmprobe.base.files import as_path
from llmprobe.base.machine import resolve_device
from llmprobe.base.progress import Progress, reporting
from llmprobe.errors import CheckpointError
from llmprobe.results.base import Result
from llmprobe.runs.checkpoints import read_checkpoint
from llmprobe.runs.folder import read_training
from llmprobe.synthetic.pieces import one_as_variant, run_plan
from llmprobe.synthetic.plan import Plan
from llmprobe.synthetic.settings import plan_search, plan_training, training_of
from llmprobe.synthetic.training import train

_OF_SEARCH = (
    *("steps", "train_lengths", "lengths", "sets", "vocab", "target", "heads", "value_size"),
    *("batch", "weight_decay", "clip", "schedule", "warmup"),
)
_OF_TRAINING = (
    *_OF_SEARCH,
    *("variants", "seeds", "width", "layers", "mlp_layers"),
    *("learning_rate", "dropout", "ema_decay", "score_at", "concatenate", "context"),
)
"""Arguments that are settings of a training or a test."""


def train_synthetic(
    task: str = "argmax",
    variants: str | Sequence[str] | None = None,
    *,
    preset: str = "quick",
    seeds: int | None = None,
    first_seed: int = 0,
    steps: int | None = None,
    train_lengths: str | tuple[int, int] | None = None,
    concatenate: int | None = None,
    lengths: str | Sequence[int] | None = None,
    sets: int | None = None,
    score_at: str | Sequence[int] | None = None,
    vocab: int | None = None,
    target: str | None = None,
    width: int | None = None,
    heads: int | None = None,
    layers: int | None = None,
    mlp_layers: int | None = None,
    value_size: int | None = None,
    context: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    clip: float = 1.0,
    schedule: str | None = None,
    warmup: int | None = None,
    dropout: float | None = None,
    ema_decay: float | None = None,
    device: str | torch.device = "auto",
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
) -> Result:
    """Train `variants` of a network on a task and measure them at many lengths.

    Returns a `SyntheticResult` for tasks of sets (argmax, dictionary), a `LegalityResult` for tasks
    of sequences (set-complement, othello, formal languages) and an `AnswersResult` for questions
    (addition, copy, ...); `llmprobe ls tasks` lists all. An argument that is None has the value of
    the `preset` (quick, desk, paper) or of the task.

    Args:
        variants: `baseline`, or parts joined by a plus (`layernorm+ssmax`). The first variant is
            the one that the others are compared with.
        seeds: networks of each variant.
        train_lengths: shortest and longest length in training.
        concatenate: for questions, examples of a training sequence, one after another; 1 if None.
        lengths: lengths to test, below those of training too. By default tasks of sequences are
            tested at all of them, and questions on both sides of the training lengths.
        sets: tests at each length, drawn anew for each seed and shared by its variants.
        score_at: for sets, earlier steps at which the same networks are tested too, such as
            (1000, 3000); see `SyntheticResult.step_frame`.
        clip: largest norm of a seed's gradient; 0 does not clip. Clipping at 1 adds about 2.2
            points to the accuracy on argmax with 256 items, so compare runs with the same.
        target: for sequences, what the loss is computed against: the token that came next
            ("sampled") or all allowed tokens ("exact").
        layers, value_size: for sequences and questions; `value_size` is per head.
        context: for sequences and questions, the number of learned positions, or of those that
            randomized and coupled ones are drawn from; as many as the longest sequence has tokens
            if None.
        mlp_layers: for sets, the linear maps of each MLP; 2 if None.
        vocab: number of tokens, for set-complement, dyck, counter, counter-3 and addition-hints.
        output: folder for the result and its checkpoints. The same call resumes there.
        overwrite: begin again if the folder holds a training.
        progress: True for a bar, or a function called as `progress(what, done, total, note)`.
    """
    given = _given(locals(), _OF_TRAINING)
    plan = plan_training(task, given, preset=preset, first_seed=first_seed)
    return _run(plan, device, output, overwrite=overwrite, progress=progress)


def search_synthetic(
    task: str = "set-complement",
    n: int = 64,
    *,
    variant: str | None = None,
    preset: str = "quick",
    first_seed: int = 0,
    steps: int | None = None,
    train_lengths: str | tuple[int, int] | None = None,
    lengths: str | Sequence[int] | None = None,
    sets: int | None = None,
    vocab: int | None = None,
    target: str | None = None,
    heads: int | None = None,
    value_size: int | None = None,
    batch: int | None = None,
    weight_decay: float | None = None,
    clip: float = 1.0,
    schedule: str | None = None,
    warmup: int | None = None,
    device: str | torch.device = "auto",
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = False,
) -> Result:
    """Random search over `n` settings of a task.

    Tasks of sequences: a setting is a draw of learning rate, dropout, EMA decay, width and depth.
    It is trained with and without dropout, and scored with raw, EMA and BEMA weights. Returns a
    `SearchResult`.

    Tasks of sets: a setting is a draw of steps, learning rate, schedule, weight decay, width,
    heads, layers of the MLPs, training lengths, W_O and residual sum. It is trained as it is and
    with each compared part, from the same seed. Returns a `SetSearchResult`.

    Args:
        variant: for sequences the network, such as `mlp+prenorm`; for sets the parts to compare,
            such as `layernorm,headnorm`. The task's own if None.
        steps: for sets, the most: steps are drawn from a 25th of it on. 50,000 with the presets
            desk and paper.
        lengths: for sets, multiples of the longest training length; 1, 4, 16, 64, 256 if None.
        schedule: of the learning rate, for sequences; "constant" if None.

    The other arguments are those of `train_synthetic`.
    """
    given = _given(locals(), _OF_SEARCH)
    if variant is not None:
        given["variants"] = variant
    plan = plan_search(task, n, given, preset=preset, first_seed=first_seed)
    return _run(plan, device, output, overwrite=overwrite, progress=progress)


def _given(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: arguments[name] for name in names if arguments[name] is not None}


def _run(
    plan: Plan,
    device: str | torch.device,
    output: str | Path | None,
    *,
    overwrite: bool,
    progress: Progress,
) -> Result:
    folder = None if output is None else as_path("output", output)
    with reporting(progress) as report:
        return run_plan(
            plan, resolve_device(device), output=folder, overwrite=overwrite, report=report
        )


def load_synthetic(
    folder: str | Path, variant: str | None = None, *, seed: int | None = None
) -> torch.nn.Module:
    """A trained network from a run's folder, ready to be probed.

    By default the run's first variant and its first seed.
    """
    folder = as_path("folder", folder)
    checkpoints = folder / "checkpoints"
    name = read_training(folder)["variants"][0] if variant is None else variant
    found: list[int] = []
    for path in sorted(checkpoints.glob("*.safetensors"), key=_first_seed):
        _, facts = read_checkpoint(path)
        if "training" not in facts:  # an evaluation
            continue
        training = training_of(facts["training"])
        known: dict[int, int] = {}
        for index, own in enumerate(training.seeds):
            if training.gives(index, name):
                known.setdefault(own, index)
        found += known
        wanted = next(iter(known), None) if seed is None else seed
        if wanted is None or wanted not in known:
            continue
        if facts["step"] < training.steps:
            raise CheckpointError(f"{path} is not trained to its end; run its command again")
        trained = train(training, checkpoint=path)
        return one_as_variant(training, trained, name, known[wanted])
    if found:
        raise CheckpointError(f"{checkpoints} has no seed {seed} of {name}; it has {found}")
    raise CheckpointError(f"{checkpoints} has no trained {name}")


def _first_seed(path: Path) -> tuple[int, str]:
    match = re.search(r"\.(\d+)-\d+\.", path.name)
    return (int(match[1]) if match else -1, path.name)
