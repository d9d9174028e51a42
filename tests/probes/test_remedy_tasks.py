"""Right answers are counted as they are, untreated and treated."""

import pytest
import torch
from devices import DEVICE

from llmprobe import attention_layers, load_model, probe_remedies
from llmprobe.probes.prompts import make_prompts
from llmprobe.probes.remedy_tasks import TASKS, Task
from llmprobe.probes.texts import BUILTIN_TEXT
from llmprobe.probes.treatments import Case, treatments


@pytest.mark.parametrize("kind", TASKS)
def test_answers_equal_those_of_all_logits(kind):
    loaded = load_model("builtin")
    prompts = make_prompts(
        kind,
        n_prompts=3,
        lengths=[48],
        tokenizer=loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        bos_token_id=loaded.bos_token_id,
    )
    task, tokens = Task(prompts, 48), prompts.batch(range(3), 48)
    with torch.inference_mode():
        every = loaded.model(tokens.to(DEVICE)).logits.argmax(-1).cpu()
        answers = task.answers(loaded.model, tokens).cpu()
    targets = prompts.targets(range(3), 48)
    assert torch.equal(answers, every[:, -targets.shape[1] :])
    assert task.score(targets, range(3)).tolist() == [1.0] * 3
    wrong = targets.clone()
    wrong[:, -1] += 1
    expected = 1 - 1 / targets.shape[1]
    assert task.score(wrong, range(3)).tolist() == pytest.approx([expected] * 3)


def test_tasks_that_cannot_be_asked_are_noted_and_left_out():
    loaded = load_model("builtin")
    result = probe_remedies(
        loaded, "8,16", remedies="temperature", doses=1, text=BUILTIN_TEXT, n_prompts=2
    )
    assert result.measures == ("loss", "key_loss")
    assert sum("prompts are left out" in note for note in result.warnings) == 2


def test_shares_are_those_of_each_treatment():
    loaded = load_model("builtin")
    ask = {"text": BUILTIN_TEXT, "n_prompts": 3, "seed": 2, "remedies": "temperature", "doses": 20}
    result = probe_remedies(loaded, "16,64", **ask)
    layers = attention_layers(loaded.model)
    heads = {layer.layer: tuple(range(layer.n_heads)) for layer in layers}
    case = Case(model=loaded.model, layers=layers, heads=heads, trained=256, longest=64, seed=2)
    prompts = make_prompts(
        "repeat",
        n_prompts=3,
        lengths=[64],
        seed=2,
        tokenizer=loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        bos_token_id=loaded.bos_token_id,
    )
    task, tokens = Task(prompts, 64), prompts.batch(range(3), 64).to(DEVICE)
    row = result.measures.index("repeat")
    with torch.inference_mode():
        before = task.score(task.answers(loaded.model, tokens), range(3)).cpu()
        assert result.baseline[row, -1] == pytest.approx(before.mean())
        for number, treatment in enumerate(treatments(["temperature"], [20])):
            with treatment.edit(case):
                after = task.score(task.answers(loaded.model, tokens), range(3)).cpu()
            assert result.change[row, number, -1] == pytest.approx((after - before).mean())
