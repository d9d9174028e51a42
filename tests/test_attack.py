"""A standing attack on the promises of a run: no fault and no forgery gives another number.

`make attack` runs thousands of cases. LLMPROBE_ATTACK_CASES is how many for each class,
LLMPROBE_ATTACK_SECONDS how long at most, LLMPROBE_ATTACK_SEED which ones. A few cases of the
classes that are fast run with the other tests.
"""

import copy
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from attack import (
    FEW,
    MANY,
    Forked,
    Report,
    Wrong,
    answer_of,
    attack,
    call,
    check_clean,
    check_folder,
    digest,
    judge,
    kill_at,
    model,
    patched,
    references,
    training,
    variance,
)
from families import COMMON, tiny
from forging import WAYS, forge, model_folder, remove_workshop, template
from hypothesis import strategies as st
from ranks import run_ranks
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from llmprobe import CheckpointError, load_result, probe_variance
from llmprobe.probes import request
from llmprobe.synthetic import training as training_module

N_CASES = int(os.environ.get("LLMPROBE_ATTACK_CASES", "100"))
SECONDS = float(os.environ.get("LLMPROBE_ATTACK_SECONDS", "30"))
SEED = int(os.environ.get("LLMPROBE_ATTACK_SEED", "0"))

probes = st.builds(
    variance, st.integers(0, 1), st.sampled_from([FEW, MANY]), st.sampled_from(["heads", "output"])
)
trainings = st.builds(training, st.integers(0, 1))
# Up to here hypothesis draws all numbers alike; of larger ones it prefers the small.
big = st.integers(0, 2**24 - 1)


RESULT = {"result.json", "arrays.npz", "evidence.safetensors"}


@pytest.fixture(autouse=True)
def _no_advice():
    """Configs of positions are made at random, and transformers has something to say to most."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    yield
    logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def _checkpoints_after_every_block(monkeypatch):
    monkeypatch.setattr(training_module, "SECONDS", 0.0)
    model()


# Concurrent runs.

one_of_several = st.fixed_dictionaries(
    {"overwrite": st.booleans(), "milliseconds": st.integers(0, 500)}
)


def several(settings):
    return st.lists(st.tuples(settings, one_of_several), min_size=2, max_size=3)


CONCURRENT = st.fixed_dictionaries(
    {
        "before": st.none() | probes | trainings,
        "runs": several(probes) | several(trainings) | several(probes | trainings),
    }
)


def check_concurrent(case):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        if case["before"]:
            call(case["before"], folder)

        def late(setting, how):
            time.sleep(how["milliseconds"] / 1000)
            return answer_of(lambda: call(setting, folder, overwrite=how["overwrite"]))

        for setting, _ in case["runs"]:
            references(setting)
        forked = [Forked(lambda run=run: late(*run)) for run in case["runs"]]
        answers = [one.answer() for one in forked]
        found = [judge(one, run[0]) for one, run in zip(answers, case["runs"], strict=True)]
        check_folder(folder)
        check_clean(Path(place))
    return "equal" if set(found) == {"equal"} else "refused"


# Kills.

by_time = st.tuples(st.just("milliseconds"), st.integers(0, 400))


def by_change(most):
    """Before the k-th change of a file."""
    return st.tuples(st.just("change"), st.integers(1, most))


def killed(how, settings=probes | trainings, most=3):
    return st.fixed_dictionaries(
        {
            "setting": settings,
            "before": st.sampled_from([None, "few", "other"]),
            "kills": st.lists(how, min_size=1, max_size=most),
        }
    )


def check_kills(case):
    """A killed run and the same call again: the reference's bits, and nothing left over."""
    setting, overwrite = case["setting"], case["before"] == "other"
    references(setting)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        if case["before"] == "few" and setting["kind"] == "variance":
            call(setting | {"n_prompts": FEW}, folder)
        elif case["before"] == "other":
            name = "seed" if setting["kind"] == "variance" else "first_seed"
            call(setting | {name: 7}, folder)
        for how, number in case["kills"]:

            def run(how=how, number=number):
                if how == "change":
                    kill_at(number, Path(place))
                return answer_of(lambda: call(setting, folder, overwrite=overwrite))

            forked = Forked(run)
            if how == "milliseconds":
                time.sleep(number / 1000)
                forked.kill()
            answer = forked.answer()
            if answer is not None and judge(answer, setting) != "equal":
                raise Wrong(f"after a kill: {answer}")
        answer = Forked(lambda: answer_of(lambda: call(setting, folder, overwrite=overwrite)))
        found = answer.answer()
        if judge(found, setting) != "equal":
            raise Wrong(f"the same call again: {found}")
        if digest(load_result(folder)) not in references(setting):
            raise Wrong("the folder has other numbers")
        check_clean(Path(place))
        names = {path.name for path in folder.iterdir()}
        if setting["kind"] == "variance" and names != RESULT:
            raise Wrong(f"the folder has {sorted(names)}")
    return "equal"


# Forged files.


@pytest.fixture(scope="module", autouse=True)
def _workshop_removed():
    yield
    remove_workshop()


def forged(**more):
    return st.fixed_dictionaries(
        {"way": st.sampled_from(WAYS), "file": big, "other": big, "bit": big, **more}
    )


def check_forged(case, kind, stop, targets, ask):
    """`ask(setting, folder)` gives an answer and the setting whose numbers it must have."""
    setting, genuine = template(kind, 0, stop)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        shutil.copytree(genuine, folder)
        forge(case, folder, template(kind, 1, stop)[1], targets)
        return judge(*ask(setting, folder))


def same_call(setting, folder):
    return answer_of(lambda: call(setting, folder)), setting


def more_prompts(setting, folder):
    more = setting | {"n_prompts": MANY}
    return answer_of(lambda: call(more, folder)), more


def opening(setting, folder):
    return answer_of(lambda: load_result(folder)), setting


PIECES = forged(stop=st.integers(2, 4))
TRAININGS = forged(stop=st.integers(1, 5))
EVIDENCE = forged(more=st.booleans())
RESULTS = forged(kind=st.sampled_from(["variance", "training"]), again=st.booleans())
KEPT = ("checkpoints/*", "configuration.json")


def check_pieces(case):
    return check_forged(case, "variance", case["stop"], KEPT, same_call)


def check_trainings(case):
    return check_forged(case, "training", case["stop"], KEPT, same_call)


def check_evidence(case):
    ask = more_prompts if case["more"] else same_call
    return check_forged(case, "variance", None, ("evidence.safetensors",), ask)


def check_results(case):
    ask = same_call if case["again"] else opening
    return check_forged(case, case["kind"], None, ("arrays.npz", "result.json"), ask)


# Models that differ in one bit.

MODELS = st.fixed_dictionaries(
    {
        "how": st.sampled_from(["parameter", "buffer", "two signs"]),
        "tensor": big,
        "place": big,
        "other": big,
        "bit": st.integers(0, 31),
        "stop": st.sampled_from([None, 2]),
    }
)


def check_models(case):
    changed = copy.deepcopy(tiny("llama"))
    chosen = changed.buffers() if case["how"] == "buffer" else changed.parameters()
    tensors = list(chosen)
    tensor = tensors[case["tensor"] % len(tensors)]
    bits = tensor.data.reshape(-1).view(torch.int32)
    places = [case["place"] % len(bits)]
    mask = torch.tensor(1 << case["bit"]).to(torch.int32)
    if case["how"] == "two signs":
        mask = torch.tensor(1 << 31).to(torch.int32)
        places.append(case["other"] % len(bits))
    for place in places:
        bits[place] ^= mask
    equal = all(map(torch.equal, _bits(changed), _bits(tiny("llama"))))
    if not tensor.isfinite().all():
        return "skipped"  # it has no numbers to give
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where, "run")
        shutil.copytree(model_folder(case["stop"]), folder)
        try:
            probe_variance(changed, "4,8", n_prompts=FEW, batch_tokens=16, output=folder)
        except CheckpointError as error:
            if equal or "model_hash" not in str(error):
                raise Wrong(f"{error}") from None
            return "refused"
    if not equal:
        raise Wrong("another model resumed the run of this one")
    return "equal"


def _bits(module):
    return [x.reshape(-1).view(torch.int32) for x in (*module.parameters(), *module.buffers())]


# Positions that are scaled.


@st.composite
def ropes(draw):
    kind = draw(st.sampled_from(["default", *ROPE_INIT_FUNCTIONS]))
    original = draw(st.integers(6, 40))
    factor = draw(st.floats(1, 16).map(lambda x: round(x, 3)))
    theta = draw(st.sampled_from([100.0, 10000.0, 500000.0]))
    rope = {"rope_type": kind, "rope_theta": theta}
    if kind not in ("default", "proportional"):
        rope["factor"] = factor
    if kind in ("yarn", "longrope", "llama3"):
        rope["original_max_position_embeddings"] = original
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            some = st.lists(st.floats(1, 8).map(lambda x: round(x, 3)), min_size=4, max_size=4)
            rope[name] = draw(some)
    if kind == "proportional":
        rope["partial_rotary_factor"] = draw(st.sampled_from([0.25, 0.5, 1.0]))
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": draw(st.sampled_from([2.0, 4.0]))}
    if kind == "yarn" and draw(st.booleans()):
        rope |= {"beta_fast": 32.0, "beta_slow": 1.0}
    if kind in ("yarn", "longrope") and draw(st.booleans()):
        rope["attention_factor"] = draw(st.floats(0.5, 2).map(lambda x: round(x, 3)))
    around = st.integers(max(2, original - 5), original + 5) | st.integers(2, 3 * original)
    lengths = draw(st.lists(around, min_size=2, max_size=4, unique=True))
    stretched = kind in ("yarn", "longrope", "llama3")
    most = max(original + 1, round(original * factor)) if stretched else original
    return {"rope": rope, "max_position_embeddings": most, "lengths": sorted(lengths)}


def check_ropes(case):
    """One pass for all lengths, where it is chosen, gives what one pass per length gives."""
    settings = COMMON | {"max_position_embeddings": case["max_position_embeddings"]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = LlamaForCausalLM(LlamaConfig(**settings, rope_parameters=case["rope"])).eval()
        for parameter in made.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0, 0.2)
    options = {"n_prompts": 4, "layers": None, "at": "heads"}
    fresh = copy.deepcopy(made)
    got = probe_variance(made, case["lengths"], **options)
    with patched(request, prefixes_agree=lambda *_, **__: False):
        expected = probe_variance(fresh, case["lengths"], **options)
    scale = np.sqrt(expected.global_variance)
    for name in ("component_std", "std_q25", "std_median", "std_q75", "global_mean"):
        off = float((np.abs(getattr(got, name) - getattr(expected, name)) / scale).max())
        if not off < 1e-4:
            raise Wrong(f"{name} is off by {off:.2g} of the standard deviation")
    return "equal"


# Ranks.

VALUES = {
    "kind": ("variance", "attention"),
    "model": ("0", "1"),
    "seed": (0, 1),
    "n_prompts": (FEW, MANY),
    "lengths": ("4,8", "4,12"),
    "query": ("free", "fixed"),
    "batch_tokens": (16, 32),
    "overwrite": (False, True),
    "output": (False, True),
}
asked = st.fixed_dictionaries({name: st.sampled_from(some) for name, some in VALUES.items()})


@st.composite
def rank_cases(draw, names=tuple(VALUES)):
    """Some ranks, of which one may have a setting or two that the others do not have."""
    first = draw(asked)
    ranks = [first] * draw(st.integers(2, 4))
    differ = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    odd = {name: next(v for v in VALUES[name] if v != first[name]) for name in differ}
    ranks[draw(st.integers(0, len(ranks) - 1))] = first | odd
    return ranks


def check_ranks(case):
    """Ranks with the same settings give the numbers of one process; mixed ones always stop."""
    mixed = any(one != case[0] for one in case)
    settings = [{k: v for k, v in one.items() if k != "output"} for one in case]
    with tempfile.TemporaryDirectory() as place:

        def run(setting, kept):
            output = Path(place, "run") if kept else None
            return lambda: answer_of(lambda: call(setting, output))

        answers = run_ranks(
            [run(setting, one["output"]) for setting, one in zip(settings, case, strict=True)]
        )
        differ = sorted({n for one in case for n in one if one[n] != case[0][n]})
        if not mixed:
            if {judge(one, settings[0]) for one in answers} != {"equal"}:
                raise Wrong(f"the same settings: {answers}")
            return "equal"
        if any(one is not None and "digest" in one for one in answers):
            raise Wrong(f"{differ} are mixed, and a rank gave a result")
        refusals = [one for one in answers if one is not None]
        if not refusals or not all(one["refusal"] and "\n" not in one["text"] for one in refusals):
            raise Wrong(f"{differ} are mixed: {answers}")
        if len(refusals) == len(answers):  # else the launcher ends those that wait
            check_clean(Path(place))
    return "refused"


CLASSES = {
    "concurrent runs": (CONCURRENT, check_concurrent, False),
    "kills": (killed(by_change(60) | by_time), check_kills, False),
    "forged pieces": (PIECES, check_pieces, True),
    "forged trainings": (TRAININGS, check_trainings, True),
    "forged evidence": (EVIDENCE, check_evidence, True),
    "forged results": (RESULTS, check_results, True),
    "models": (MODELS, check_models, True),
    "ropes": (ropes(), check_ropes, True),
    "ranks": (rank_cases(), check_ranks, False),
}
"""By name: the cases, what checks one, and whether it always gives the same answer."""


@pytest.fixture(scope="module")
def lines():
    """Printed at the very end; `make attack` shows it."""
    found: list[Report] = []
    yield found
    print("", *(report.line() for report in found), sep="\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_no_case_of_an_attack_gives_a_wrong_result(name, lines):
    cases, check, shrink = CLASSES[name]
    report = attack(name, cases, check, n=N_CASES, seconds=SECONDS, seed=SEED, shrink=shrink)
    lines.append(report)
    if report.wrong:
        pytest.fail(report.told(), pytrace=False)


SMOKE = {
    "concurrent runs": (st.fixed_dictionaries({"before": st.none(), "runs": several(probes)}), 2),
    "kills": (killed(by_change(30), probes, most=1), 3),
    "forged pieces": (PIECES, 5),
    "forged trainings": (TRAININGS, 2),
    "forged evidence": (EVIDENCE, 6),
    "ranks": (rank_cases(("seed", "n_prompts", "lengths", "output", "overwrite")), 4),
}
"""By name: the cases, and how many of them."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMOKE)
def test_a_few_cases_of_an_attack(name):
    cases, n = SMOKE[name]
    report = attack(name, cases, CLASSES[name][1], n=n, seconds=60, seed=0)
    assert sum(report.counts.values()) == n
    if report.wrong:
        pytest.fail(report.told(), pytrace=False)
