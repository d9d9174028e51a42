"""`check`, `variance`, `attention` and `loss`."""

import json
import shlex

import pytest
from families import tiny
from samples import make_attention_result, make_loss_result

import llmprobe
from llmprobe.commands import running
from llmprobe.commands.naming import default_folder
from llmprobe.probes.loss import LossRequest


def test_check_passes_every_line_on_a_trained_model(call):
    code, out, err = call("check", "builtin")
    assert (code, err) == (0, "")
    assert out.startswith("builtin: float32 on cpu, sdpa\n")
    lines = out.splitlines()[1:]
    assert len(lines) == 11
    assert all(line.startswith("ok ") for line in lines)
    document = json.loads(call("check", "builtin", "--length", "16", "--json")[1])
    assert document["passed"]
    assert document["model"]["context_length"] == 256


def test_variance_prints_a_table_and_writes_the_result(call, tmp_path):
    target = tmp_path / "out"
    code, out, err = call("variance", "--lengths", "8..32", "--at", "heads", "--output", target)
    assert code == 0
    assert "one pass for all lengths" in err
    assert "95 % CI" in out
    assert "Of 6 heads, " in out
    names = sorted(path.name for path in target.iterdir())
    figures = ["variance.pdf", "variance.png"]
    assert names == ["arrays.npz", "evidence.safetensors", "result.json", *figures]
    text = (target / "result.json").read_text()
    assert str(tmp_path) not in text
    code, out, err = call("variance", "--lengths", "8,16", "--output", target)
    assert (code, out) == (1, "")
    assert "lengths [8, 16, 32] (asked: [8, 16])" in err
    assert "--overwrite" in err
    assert call("variance", "--lengths", "8,16", "--output", target, "--overwrite")[0] == 0
    assert llmprobe.load_result(target).lengths == (8, 16)


def test_json_is_one_document_on_stdout(call, tmp_path):
    for command in ("variance", "attention"):
        options = ("--lengths", "8,16", "--n-prompts", 4, "--quiet", "--json")
        code, out, err = call(command, *options, "--output", tmp_path / command)
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["kind"] == command
        assert document["rows"][0]["n_prompts"] == 4


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, tmp_path):
    code, out, _ = call("variance", "--dry-run", "--output", tmp_path / "out")
    assert code == 0
    assert "65,536 tokens" in out
    assert not (tmp_path / "out").exists()


def test_lengths_beyond_a_learned_table_are_one_line(call, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    code, _, err = call("variance", tmp_path / "gpt2", "--lengths", "16..256", "--quiet")
    assert code == 1
    assert "256 is beyond the 128 positions" in err


def test_loss_prints_a_table_draws_and_compares(call, tmp_path):
    options = ("--lengths", "8,16", "--n-prompts", 4, "--same-targets", 4, "--quiet")
    for seed in (0, 1):
        code, out, _ = call("loss", *options, "--seed", seed, "--output", tmp_path / f"{seed}")
        assert code == 0
        assert "nats per token" in out
        assert "key tokens" in out
        assert (tmp_path / f"{seed}" / "loss.png").is_file()
    figure = tmp_path / "both.png"
    code, out, _ = call("compare", tmp_path / "0", tmp_path / "1", "--output", figure)
    assert code == 0
    assert "lowest up to" in out
    assert figure.is_file()
    document = json.loads(call("loss", *options, "--output", tmp_path / "0", "--json")[1])
    assert document["kind"] == "loss"
    assert [row["length"] for row in document["rows"]] == [8, 16]


def test_a_folder_of_loss_is_named_after_what_is_not_the_default(call):
    def planned(*options):
        return call("loss", "--dry-run", *options)[0]

    assert planned("--n-prompts", 4, "--lengths", "8,16") == 0
    assert running_folder(LossRequest()) == "runs/loss-builtin"
    assert running_folder(LossRequest(same_targets=4)) == "runs/loss-builtin-same-targets-4"
    assert running_folder(LossRequest(prompts="random")) == "runs/loss-builtin-random"


def running_folder(asked):
    defaults = running._defaults(type(asked))
    return str(default_folder("loss", "builtin", vars(asked), defaults=defaults))


def test_kinds_that_cannot_be_compared_are_refused(call, tmp_path):
    loss = make_loss_result().save(tmp_path / "loss")
    attention = make_attention_result().save(tmp_path / "attention")
    for folders, said in (
        ((attention, loss), "is a result of attention; compare those of loss or variance"),
        ((loss, attention), "is a result of attention; compare those of loss"),
    ):
        code, _, err = call("compare", *folders, "--output", tmp_path / "x.png")
        assert code == 1
        assert said in err


def test_retrieval_prints_answers_and_heads(call, tmp_path):
    options = ("--lengths", "40,64", "--n-prompts", 4, "--layers", 0, "--quiet")
    code, out, _ = call("retrieval", *options, "--output", tmp_path / "run")
    assert code == 0
    assert "right answers by length" in out
    assert "attention on the source: the heads with most" in out
    assert (tmp_path / "run" / "retrieval.png").is_file()
    document = json.loads(call("retrieval", *options, "--output", tmp_path / "run", "--json")[1])
    assert [row["length"] for row in document["answers"]] == [40, 64]
    assert len(document["links"]) == 6
    code, _, err = call("retrieval", "--prompts", "random")
    assert (code, err.count("\n")) == (1, 1)
    assert "accepted: dictionary, repeat" in err


@pytest.mark.parametrize("kind", ["variance", "loss", "retrieval"])
def test_the_command_of_a_result_gives_it_again(call, tmp_path, kind):
    options = ("--lengths", "40,64", "--n-prompts", 4, "--quiet", "--output")
    assert call(kind, *options, tmp_path / "run")[0] == 0
    words = shlex.split(llmprobe.load_result(tmp_path / "run").command())
    assert words[0] == "llmprobe"
    code, _, err = call(*words[1:], "--output", tmp_path / "run", "--quiet")
    assert (code, err) == (0, "")
