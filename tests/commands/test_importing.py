"""What commands import, they import without the garbage collector; their work has it."""

import gc

import pytest
from samples import make_variance_result

from llmprobe.cli import _COMMANDS
from llmprobe.commands.importing import importing

EXAMPLES = {
    command.__name__: example.split()[1:]
    for panel in ("Probe a model", "Train small models", "About")
    for command, example in _COMMANDS[panel].items()
}
STOP_AT_HEAVY = """
import gc, importlib.abc, os, sys
class Heavy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in HEAVY:
            print(name, gc.isenabled(), flush=True)
            os._exit(0)
from llmprobe.cli import main
HEAVY = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Heavy())
main()
"""


def test_it_leaves_the_collector_as_it_was():
    with importing():
        assert not gc.isenabled()
        with importing():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", EXAMPLES)
def test_torch_is_imported_without_the_collector(run_python, name):
    done = run_python(STOP_AT_HEAVY, "torch,transformers", *EXAMPLES[name])
    assert done.stdout.splitlines()[-1:] in (["torch False"], ["transformers False"]), done.stderr


@pytest.mark.parametrize("words", ["plot {0}", "compare {0} {1} --output {1}.png"])
@pytest.mark.parametrize("heavy", ["pandas", "matplotlib.figure"])
def test_saved_results_are_drawn_without_the_collector(run_python, tmp_path, words, heavy):
    first, other = (make_variance_result().save(tmp_path / name) for name in ("run", "other"))
    done = run_python(STOP_AT_HEAVY, heavy, *words.format(first, other).split())
    assert done.stdout == f"{heavy} False\n", done.stderr


def test_the_work_of_a_probe_has_the_collector(call, monkeypatch, tmp_path):
    from llmprobe.probes.probe import ProbeRun

    seen, execute = [], ProbeRun.execute

    def watched(self, **options):
        seen.append(gc.isenabled())
        return execute(self, **options)

    monkeypatch.setattr(ProbeRun, "execute", watched)
    options = ("--lengths", "8,16", "--n-prompts", 2, "--quiet")
    assert call("variance", *options, "--output", tmp_path / "run")[0] == 0
    assert seen == [True]
    assert gc.isenabled()


def test_a_process_ends_without_a_search_for_garbage(run_python):
    script = (
        "import atexit, gc, sys\n"
        "from llmprobe.cli import main\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000))\n"
        "main()"
    )
    done = run_python(script, "--version")
    assert done.stdout.splitlines()[-1] == "frozen True", done.stderr
