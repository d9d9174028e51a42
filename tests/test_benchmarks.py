"""The benchmarks measure what they say: equal work, counted right, and fair verdicts."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkout import ROOT
from torch.utils.flop_counter import FlopCounterMode

from llmprobe.base.trends import fit_trends

LENGTHS = [64, 32, 16]


@pytest.fixture
def bench(monkeypatch):
    """The scripts as modules; they are no package, so their folder is put on the path."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    names = ("check", "many", "measure", "report", "shapes", "sweeps", "ways", "worker")
    return SimpleNamespace(**{name: import_module(name) for name in names})


@pytest.fixture
def finding(bench):
    return bench.report.compare("a", "times as fast", [1.0, 2.0], [10.0, 16.0], target=8)


@pytest.fixture
def smaller(bench):
    return bench.report.compare(
        "c", "memory", [2.0], [8.0], unit="bytes", target=0.25, at_least=False
    )


def test_a_comparison_is_oriented_as_its_target_says(finding, smaller):
    assert (finding.ratio, finding.low, finding.high, finding.repeats) == (9, 8, 10, 2)
    assert smaller.ratio == 0.25


@pytest.mark.parametrize(("ratio", "held"), [(7.9, False), (8, True), (9, True)])
def test_more_is_held_from_the_target_on(finding, ratio, held):
    assert replace(finding, ratio=ratio).held is held


@pytest.mark.parametrize(("ratio", "held"), [(0.24, True), (0.25, True), (0.26, False)])
def test_less_is_held_up_to_the_target(smaller, ratio, held):
    assert replace(smaller, ratio=ratio).held is held


def test_unequal_numbers_are_never_held(finding):
    assert not replace(finding, equal=False).held
    assert not replace(finding, equal=False, target=None).held
    assert replace(finding, equal=False).verdict == "UNEQUAL"


def test_a_report_survives_its_file_and_names_nobody(bench, finding, smaller, tmp_path):
    report = bench.report.Report(
        findings=[finding, smaller], skipped=["one"], machine=bench.report.machine(1e9)
    )
    report.save(tmp_path, figures=("png", "pdf"))
    text = (tmp_path / "bench.json").read_text()
    assert bench.report.Report.from_json(text) == report
    assert set(json.loads(text)["machine"]) == {
        "versions",
        "cpus",
        "threads",
        "matmul_gflops",
        "date",
    }
    assert "times as fast" in (tmp_path / "bench.md").read_text()
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png", ".pdf"}


def test_the_figure_shows_ratios_and_targets(bench, finding, smaller):
    axes = bench.report.Report(findings=[finding, smaller]).draw().axes[0]
    ends = sorted(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert ends == pytest.approx([0.25, 9])
    targets = next(line for line in axes.lines if line.get_label() == "target")
    assert sorted(targets.get_xdata()) == [0.25, 8]


@pytest.mark.parametrize(
    ("factor", "smaller_factor", "n_bad"),
    [(0.81, 1.19, 0), (0.79, 1.0, 1), (1.0, 1.21, 1), (2.0, 0.5, 0)],
)
def test_a_check_names_what_lost_more_than_a_fifth(
    bench, finding, smaller, tmp_path, monkeypatch, capsys, factor, smaller_factor, n_bad
):
    after = [
        replace(finding, ratio=finding.ratio * factor),
        replace(smaller, ratio=smaller.ratio * smaller_factor),
    ]
    code, out = _check(bench, tmp_path, monkeypatch, capsys, [finding, smaller], after)
    assert code == (n_bad > 0)
    assert out.count("worse:") == n_bad


def test_a_check_fails_for_what_vanished_and_not_for_what_is_new(
    bench, finding, smaller, tmp_path, monkeypatch, capsys
):
    code, out = _check(bench, tmp_path, monkeypatch, capsys, [finding, smaller], [finding])
    assert code == 1
    assert "worse: c memory" in out
    assert _check(bench, tmp_path, monkeypatch, capsys, [finding], [finding, smaller])[0] == 0


def _check(bench, tmp_path, monkeypatch, capsys, before, after):
    paths = [tmp_path / "new.json", tmp_path / "old.json"]
    for path, findings in zip(paths, (after, before), strict=True):
        path.write_text(bench.report.Report(findings=findings).to_json())
    monkeypatch.setattr(sys, "argv", ["check.py", *map(str, paths)])
    with pytest.raises(SystemExit) as caught:
        bench.check.main()
    return int(caught.value.code), capsys.readouterr().out


def test_an_exponent_is_that_of_the_power_law(bench):
    sizes = [16, 64, 256]
    assert bench.measure.exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)


def test_work_in_turns_is_counted_after_the_warm_up(bench):
    order = []
    work = {name: lambda name=name: order.append(name) for name in "xy"}
    timing = bench.measure.alternate(work, rounds=2, warm_up=1)
    assert "".join(order) == "xyyxxy"
    assert [len(timing[name].times) for name in "xy"] == [2, 2]


def test_peak_memory_sees_what_was_freed_again(bench):
    peak, shape = bench.measure.peak_memory(lambda: torch.ones(16, 2**20).shape)
    assert peak >= 60 * 2**20
    assert shape == (16, 2**20)


def test_a_shallow_model_begins_as_a_deep_one(bench):
    shallow = bench.shapes.build("tiny", 2).state_dict()
    deep = bench.shapes.build("tiny", 4).state_dict()
    assert shallow.keys() < deep.keys()
    assert all(torch.equal(weight, deep[name]) for name, weight in shallow.items())
    layers = [deep[f"model.layers.{n}.mlp.up_proj.weight"] for n in (0, 1)]
    assert not torch.equal(*layers)


def test_a_shorter_prompt_is_a_prefix(bench):
    model = bench.shapes.build("tiny")
    long = bench.shapes.prompt(model, 64)
    assert torch.equal(bench.shapes.prompt(model, 16), long[:, :16])


@pytest.mark.parametrize("way", ["hooks", "hooks, early stop"])
@pytest.mark.parametrize("layers", [[0], [0, 2], [0, 1, 2]])
def test_the_ways_lead_to_the_same_numbers(bench, way, layers):
    model = bench.shapes.build("tiny")
    tokens = bench.shapes.prompt(model, max(LENGTHS))
    with torch.inference_mode():
        ours, theirs = (
            bench.ways.WAYS[name](model, tokens, LENGTHS, layers) for name in ("llmprobe", way)
        )
    assert ours.shape == (len(layers), len(LENGTHS), 32)
    assert bench.sweeps.relative_difference(ours.numpy(), theirs.numpy()) < 1e-5
    assert not any(module._forward_hooks for module in model.modules())


def test_rows_are_those_of_whole_matrices(bench):
    model = bench.shapes.build("tiny")
    tokens = bench.shapes.prompt(model, max(LENGTHS))
    with torch.inference_mode():
        ours, theirs = (
            bench.ways.WAYS[name](model, tokens, LENGTHS, [0, 2])
            for name in ("rows", "output_attentions")
        )
    assert ours.shape == (2, len(LENGTHS), 4, 17)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_needed_flops_are_those_of_the_layers(bench):
    """Between two depths lies one whole layer, whose attention needs half of the square."""
    model, length = bench.shapes.build("tiny", 1), 64
    config = model.config
    model.set_attn_implementation("eager")  # sdpa on the CPU is not counted
    square = 4 * length**2 * config.hidden_size
    counted = _count(lambda: model.model(torch.zeros(1, length, dtype=int), use_cache=False))
    flops = [bench.shapes.needed_flops(config, length, 3, n) for n in (1, 2)]
    assert flops[1] - flops[0] == counted - square // 2


def test_needed_flops_of_the_deepest_layer_are_those_of_few_queries(bench):
    model, length, n = bench.shapes.build("tiny", 1), 64, 3
    attention, config = model.model.layers[0].self_attn, model.config
    x, few = torch.ones(length, config.hidden_size), torch.ones(n, config.hidden_size)
    size = config.hidden_size // config.num_attention_heads
    rows = torch.ones(config.num_attention_heads, n, size)
    keys = torch.ones(config.num_attention_heads, length, size)

    def work():
        attention.k_proj(x), attention.v_proj(x), attention.q_proj(few), attention.o_proj(few)
        rows @ keys.mT @ keys

    assert bench.shapes.needed_flops(config, length, n, 1) == _count(work)


def _count(work):
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.slow  # starts interpreters
def test_a_worker_answers_and_what_it_does_not_survive_is_none(bench, monkeypatch):
    with bench.worker.Worker("tiny") as worker:
        outcome = worker.ask("hooks", LENGTHS, [0], memory=True)
        assert outcome.numbers.shape == (1, len(LENGTHS), 32)
        assert outcome.seconds > 0
        assert outcome.peak is not None
        assert 0 <= outcome.others <= 1
        monkeypatch.setattr(bench.worker, "MOST_BYTES", 2**24)
        assert worker.ask("output_attentions", [2048], [0]) is None
        assert "memory" in worker.reason.lower()
        assert worker.process is None  # the next request starts another


@pytest.fixture(scope="module")
def coverage():
    path = ROOT / "benchmarks" / "coverage.py"  # a package on the path has the same name
    spec = spec_from_file_location("coverage_of_intervals", path)
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("n_queries", [0, 16, 64])
def test_many_samples_at_once_get_the_intervals_and_notes_of_a_probe(coverage, n_queries):
    rng = np.random.default_rng(0)
    population = coverage.heavy(rng, 1024)[:, 2:6]
    layers, part = [slice(0, 2), slice(2, 4)], "within" if n_queries else "total"
    drawn = coverage.samples(population, 128, rng, n_queries, 6)
    ends, _, notes = coverage.intervals(drawn, part, layers)
    for sample in range(6):
        for number, heads in enumerate(layers):
            one = {x: getattr(drawn, x)[:, heads, sample] for x in ("count", "mean", "m2")}
            columns, told = fit_trends(coverage.LENGTHS, replace(drawn, **one), np.ones(3))
            for end, name in zip(ends, ("low", "high"), strict=True):
                np.testing.assert_allclose(end[heads, sample], columns[f"slope_{part}_{name}"])
            assert notes[number, sample] == bool(told)


def test_coverage_is_counted_by_head_and_notes_by_layer(coverage, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2048, 4, 3, 8))
    # In the second layer three prompts of 100 are all that varies at one of the lengths.
    x[:, 2:, 2] *= np.where(rng.random((2048, 1, 1)) < 0.03, 30, 1)
    coverage.report("toy", x, 40, n_heads=2)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["toy", str(n)] for n in (16, 32, 64, 256)]
    for _, _, _, mean, worst, below, fine, bad in rows[1:3]:
        middle, error = (float(x) for x in mean.strip(" %").split(" ± "))
        assert 40 < middle < 90
        assert 1 < error < 10
        assert float(worst.strip("%")) < 80
        assert below == "50%"
        assert float(fine.strip("%")) < 20 <= float(bad.strip("%"))


@pytest.mark.thorough
def test_many_prompts_and_fixed_queries_are_measured_on_equal_numbers(bench, monkeypatch):
    monkeypatch.setattr(bench.many, "N_PROMPTS", 8)
    options = bench.report.Options(skip=lambda reason: None)
    found = [*bench.many.many_prompts(options, "tiny", "16..64")]
    found += bench.many.fixed_queries(options, "tiny", 64)
    assert {finding.case for finding in found} == {"k", "l"}
    assert all(finding.equal for finding in found)
    scaled = [finding for finding in found if "hooks" in finding.name]
    assert len(scaled) == 4
    assert all("its time is scaled" in finding.note for finding in scaled)
