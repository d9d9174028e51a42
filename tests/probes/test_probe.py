"""A probe is the same to the bit, whoever did its pieces and however often it was stopped."""

import copy
import errno
import json
import os

import pytest
import torch
from cases import thorough
from families import tiny
from prompt_sets import ragged
from ranks import run_ranks
from tokenizers import Tokenizer, normalizers

from llmprobe import (
    load_model,
    load_result,
    merge_results,
    probe_ablation,
    probe_attention,
    probe_loss,
    probe_remedies,
    probe_retrieval,
    probe_variance,
)
from llmprobe.base.machine import sample_weights
from llmprobe.base.processes import Process
from llmprobe.errors import CaptureError, CheckpointError, ResultExistsError
from llmprobe.probes import probe as probe_module
from llmprobe.probes.sweeps import Sweep
from llmprobe.runs import jobs
from llmprobe.runs.folder import open_probe

OPTIONS = {"lengths": "4..32", "layers": [0, 4], "n_prompts": 21, "batch_tokens": 100}
BUILTIN = load_model("builtin")
PROBES = {
    "variance": lambda **more: probe_variance(BUILTIN, at="heads", **OPTIONS | more),
    "attention": lambda **more: probe_attention(BUILTIN, **OPTIONS | more),
    "own": lambda **more: probe_variance(BUILTIN, prompts=ragged(21), **OPTIONS | more),
    "rows": lambda **more: probe_attention(BUILTIN, prompts=ragged(21), **OPTIONS | more),
}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
RESULT = {"result.json", "arrays.npz", "evidence.safetensors"}


def same(a, b):
    """But for the second in which they were made."""
    mine, theirs = a.to_document(), b.to_document()
    for document in (mine, theirs):
        document["provenance"].pop("created")
    return str(mine) == str(theirs)


class Killed(Exception):
    pass


def stop_after(n, monkeypatch):
    """Have the n-th unit from now on fail before it is done."""
    run, left = Sweep.run, [n]

    def failing(*args, **options):
        if not left[0]:
            raise Killed
        left[0] -= 1
        run(*args, **options)

    monkeypatch.setattr(Sweep, "run", failing)


@every_probe
@pytest.mark.parametrize("query", ["free", *thorough("fixed")])
def test_a_probe_that_was_stopped_goes_on_to_the_same_bits(probe, query, tmp_path, monkeypatch):
    undisturbed = probe(query=query)
    for n in (0, 1, 3):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            stop_after(n, patch)
            probe(query=query, output=tmp_path / "run")
        assert not (tmp_path / "run" / "result.json").exists()
    assert len(list(tmp_path.glob("run/checkpoints/*.safetensors"))) == 4
    advanced = []
    resumed = probe(
        query=query, output=tmp_path / "run", progress=lambda *step: advanced.append(step)
    )
    assert same(resumed, undisturbed)
    assert same(load_result(tmp_path / "run"), undisturbed)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == RESULT


@every_probe
@pytest.mark.parametrize("n_processes", [3, *thorough(2, 5)])
def test_processes_share_out_the_pieces_and_give_the_bits_of_one(
    probe, n_processes, tmp_path, monkeypatch
):
    alone = probe()
    monkeypatch.setattr(jobs, "_all_texts", lambda own: [own] * n_processes)
    done = []
    for rank in range(n_processes):
        # Each goes as far as the others would be waited for.
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(jobs, "process", lambda rank=rank: Process(rank, rank, n_processes))
            patch.setattr(jobs, "gather_tensors", lambda own: done.append(own) or stop())
            probe()
    assert not set.intersection(*({*own} for own in done))
    together = {name: tensor for own in done for name, tensor in own.items()}
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "process", lambda: Process(0, 0, n_processes))
        patch.setattr(jobs, "gather_tensors", lambda own: together)
        assert same(probe(output=tmp_path / "run"), alone)


def stop():
    raise Killed


def test_the_other_processes_find_what_the_first_has_begun_in_the_place_of_a_result(tmp_path):
    PROBES["variance"](output=tmp_path / "run")
    for number in range(3):
        with open_probe(tmp_path / "run", {"seed": 1}, overwrite=True) as space:
            assert space.checkpoint("x").exists() == (number > 0)
            space.checkpoint("x").write_text("")


def test_another_configuration_is_refused_with_what_differs(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(1, patch)
        PROBES["variance"](output=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"seed 0 \(asked: 1\)"):
        PROBES["variance"](output=tmp_path / "run", seed=1)
    with pytest.raises(CheckpointError, match="'variance'"):
        PROBES["attention"](output=tmp_path / "run")
    other = PROBES["variance"](output=tmp_path / "run", seed=1, overwrite=True)
    assert same(other, PROBES["variance"](seed=1))


def test_a_result_stays_until_the_one_that_takes_its_place_is_there(tmp_path, monkeypatch):
    run = tmp_path / "run"
    first = PROBES["variance"](output=run)
    with pytest.raises(CheckpointError, match="kind 'variance'"):
        PROBES["attention"](output=run)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(2, patch)
        PROBES["attention"](output=run, overwrite=True)
    assert same(load_result(run), first)
    second = PROBES["attention"](output=run, overwrite=True)
    assert same(load_result(run), second)
    assert {path.name for path in run.iterdir()} == RESULT


def test_a_broken_checkpoint_is_named(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(1, patch)
        PROBES["variance"](output=tmp_path / "run")
    (broken,) = tmp_path.glob("run/checkpoints/*")
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{broken.name} is no readable checkpoint"):
        PROBES["variance"](output=tmp_path / "run")


def test_a_model_in_training_is_probed_without_dropout_and_left_as_it_was():
    model = copy.deepcopy(tiny("gpt2"))
    model.config.attn_pdrop = model.config.resid_pdrop = 0.5
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    expected = probe_variance(model.eval(), "4,8", n_prompts=4)
    model.train()
    model.transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    result = probe_variance(model, "4,8", n_prompts=4)
    assert same(result, expected)
    assert [module.training for module in model.modules()] == modes


def test_what_somebody_else_keeps_in_a_folder_stays(tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "checkpoints").mkdir(parents=True)
    (theirs / "checkpoints" / "step1000.pt").write_text("weeks of work")
    (theirs / "result.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(ResultExistsError, match="is no result"):
            PROBES["variance"](output=theirs, overwrite=overwrite)
    assert (theirs / "checkpoints" / "step1000.pt").exists()

    run = tmp_path / "run"
    PROBES["variance"](output=run, n_prompts=16)
    for name in ("variance.csv", "search.py"):
        (run / name).write_text("mine")
    PROBES["variance"](output=run)
    assert (run / "variance.csv").exists()
    assert (run / "search.py").exists()


def test_a_result_stays_where_the_longer_one_cannot_be_written(tmp_path, monkeypatch):
    run = tmp_path / "run"
    before = PROBES["variance"](output=run, n_prompts=16)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No space left"):
        patch.setattr("llmprobe.results.base.write_arrays", fail)
        PROBES["variance"](output=run)
    assert same(load_result(run), before)
    assert (PROBES["variance"](output=run).n_prompts == 21).all()
    assert same(load_result(run), PROBES["variance"](output=run))


def test_only_the_main_process_clears_up(tmp_path, monkeypatch):
    """Whether a process of another machine is alive cannot be asked here."""
    half = tmp_path / "run" / ".16-1024.0.safetensors.999999.partial"
    open_probe(tmp_path / "run", {}).close()
    half.touch()
    with monkeypatch.context() as patch:
        patch.setattr("llmprobe.runs.folder.process", lambda: Process(1, 1, 2))
        open_probe(tmp_path / "run", {})
    assert half.exists()
    open_probe(tmp_path / "run", {})
    assert not half.exists()


def test_a_result_that_another_run_puts_there_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    """The other run adds prompts after this one has looked and before it holds the lock."""
    run = tmp_path / "run"
    PROBES["variance"](output=run, n_prompts=16)
    open_run = probe_module.open_probe

    def late(*args, **options):
        monkeypatch.setattr(probe_module, "open_probe", open_run)
        PROBES["variance"](output=run, n_prompts=21)
        return open_run(*args, **options)

    monkeypatch.setattr(probe_module, "open_probe", late)
    with pytest.raises(CheckpointError, match="was changed by another run just now"):
        PROBES["variance"](output=run, n_prompts=18)
    assert (load_result(run).n_prompts == 21).all()
    with pytest.raises(CheckpointError, match="has 21 prompts, more than the 18"):
        PROBES["variance"](output=run, n_prompts=18)


@every_probe
def test_what_a_run_leaves_that_was_killed_when_all_was_done_is_tidied(probe, tmp_path):
    run = tmp_path / "run"
    first = probe(output=run)
    for name in (".lock", ".holder", ".tmpXyZ", f".{2**22 + 1}.partial"):
        (run / name).write_text("")
    (run / "checkpoints").mkdir()
    assert same(probe(output=run), first)
    assert {path.name for path in run.iterdir()} == RESULT


def test_the_pieces_of_a_run_that_adds_prompts_stay_where_the_result_is_asked_for(
    tmp_path, monkeypatch
):
    run = tmp_path / "run"
    PROBES["variance"](output=run, n_prompts=16)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(1, patch)
        PROBES["variance"](output=run, n_prompts=21)
    pieces = sorted(run.glob("checkpoints/*"))
    assert pieces
    PROBES["variance"](output=run, n_prompts=16)
    assert sorted(run.glob("checkpoints/*")) == pieces


def said_by(run):
    """The refusal of a rank, or that there was none."""
    try:
        run()
    except (ValueError, CheckpointError) as error:
        return str(error)
    return "a result"


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("seed", 1, "seed 0 and 1"),
        ("lengths", "4..16", "lengths '4..32' and '4..16'"),
        ("output", "b", "output"),
        ("overwrite", True, "overwrite False and True"),
        ("n_prompts", 22, "n_prompts 21 and 22"),
        ("query", "fixed", "query 'free' and 'fixed'"),
    ],
)
def test_ranks_that_were_asked_different_things_all_stop_before_the_work(
    name, other, words, tmp_path
):
    def rank(**more):
        more["output"] = tmp_path / more.get("output", "a")
        return lambda: said_by(lambda: PROBES["variance"](**more))

    for which in (1, 2):
        ranks = [rank(), rank(), rank()]
        ranks[which] = rank(**{name: other})
        said = run_ranks(ranks)
        assert len(set(said)) == 1, said
        assert f"rank 0 and rank {which} were started with different settings" in said[0]
        assert words in said[0]
        assert "\n" not in said[0]
    assert not list(tmp_path.iterdir())


def test_ranks_whose_files_differ_under_the_same_name_all_stop(tmp_path):
    """As on machines that share no disk: the arguments are the same."""

    def rank(folder, content):
        text = tmp_path / folder / "text.txt"
        text.parent.mkdir()
        text.write_text(content * 100)
        return lambda: said_by(
            lambda: (
                os.chdir(text.parent)
                or probe_variance(BUILTIN, "4,8", prompts="text", text="text.txt", n_prompts=4)
            )
        )

    said = run_ranks([rank("a", "once upon a time "), rank("b", "there was a little dog ")])
    assert len(set(said)) == 1, said
    assert "text_hash" in said[0]


def test_weights_that_change_under_way_end_the_run_and_keep_no_piece_of_it(tmp_path):
    loaded = copy.deepcopy(BUILTIN)
    before, calls = sample_weights(loaded.model), []

    def train(*_):
        calls.append(1)
        if len(calls) == 3:
            loaded.model.model.layers[0].self_attn.v_proj.weight.data *= 1.01

    with pytest.raises(CaptureError, match="changed while it was probed") as caught:
        probe_variance(loaded, output=tmp_path / "run", progress=train, **OPTIONS)
    assert "\n" not in str(caught.value)
    assert sample_weights(loaded.model) != before
    assert len([*tmp_path.glob("run/checkpoints/*.safetensors")]) == 1  # it reports twice a piece
    # The same call with the right model resumes at what was kept.
    again = probe_variance(BUILTIN, output=tmp_path / "run", **OPTIONS)
    assert same(again, probe_variance(BUILTIN, **OPTIONS))


def test_a_run_is_not_resumed_with_another_tokenizer(tmp_path):
    """Random prompts are the same tokens; the bytes that they stand for are not."""
    given = {"lengths": "4,8", "prompts": "random", "n_prompts": 4, "output": tmp_path / "run"}
    probe_loss(BUILTIN, **given)
    other = copy.deepcopy(BUILTIN.tokenizer)
    rules = json.loads(other.backend_tokenizer.to_str())
    rules["decoder"] = None
    other._tokenizer = Tokenizer.from_str(json.dumps(rules))
    with pytest.raises(CheckpointError, match="tokenizer_hash"):
        probe_loss(BUILTIN, tokenizer=other, **given | {"n_prompts": 6})
    probe_loss(BUILTIN, tokenizer=copy.deepcopy(BUILTIN.tokenizer), **given | {"n_prompts": 6})


TEXT = {"lengths": "8,16", "n_prompts": 4, "text": "builtin"}
REMEDY = TEXT | {"remedies": "logn", "doses": 1.0}
OTHERS = {
    probe_loss: (TEXT, {"same_targets": 2}, {"text": "other"}, {"bos": "no"}),
    probe_retrieval: ({"lengths": "64", "n_prompts": 4}, {"layers": 1}, {"prompts": "repeat"}),
    probe_ablation: (TEXT | {"heads": {"a": "0.0"}}, {"heads": {"a": "0.1"}}, {"n_controls": 0}),
    probe_remedies: (
        REMEDY,
        {"rope": "linear:2"},
        {"heads": "0.1"},
        {"doses": 2.0},
        {"trained": 8},
    ),
}


@pytest.mark.parametrize("probe", OTHERS)
def test_prompts_of_another_request_are_not_added(probe, tmp_path):
    """Whatever an argument changes, a folder that has some prompts takes no others."""
    other = tmp_path / "builtin"  # a file of this name, of another text
    other.write_text("the little dog and the big cat went to the park to play with a ball. " * 20)
    given, *changes = OTHERS[probe]
    probe(BUILTIN, output=tmp_path / "run", **given)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for change in changes:
        change = {"text": other} if "text" in change else change
        with pytest.raises(CheckpointError, match="holds another run") as caught:
            probe(BUILTIN, output=tmp_path / "run", **given | {"n_prompts": 5} | change)
        assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_results_of_different_tokenizers_are_not_joined(tmp_path):
    """The same text, cut into other tokens."""
    other = copy.deepcopy(BUILTIN.tokenizer)
    other.backend_tokenizer.normalizer = normalizers.Replace("e", "a")
    for seed, tokenizer in ((0, BUILTIN.tokenizer), (1, other)):
        given = {"seed": seed, "text": "builtin", "n_prompts": 4, "output": tmp_path / str(seed)}
        probe_loss(BUILTIN, "4,8", tokenizer=tokenizer, **given)
    with pytest.raises(CheckpointError, match="tokenizer_hash"):
        merge_results([tmp_path / "0", tmp_path / "1"], tmp_path / "both")


def test_ranks_with_different_models_stop(monkeypatch):
    monkeypatch.setattr(jobs, "process", lambda: Process(0, 0, 1))
    monkeypatch.setattr(probe_module, "is_alone", lambda: False)
    asked = []
    monkeypatch.setattr(probe_module, "agree_on", asked.append)
    for seed in (0, 1):
        probe_variance(tiny("llama", seed=seed), "4,8", n_prompts=4)
    first, second = (facts for facts in asked if "model_hash" in facts)
    assert first["model_hash"] != second["model_hash"]
