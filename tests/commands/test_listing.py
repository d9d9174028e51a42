"""`ls`."""

import json

import pytest

from llmprobe.probes.prompts import Prompts
from llmprobe.results.opening import known_kinds
from llmprobe.synthetic.decoder_network import DECODER_PARTS
from llmprobe.synthetic.set_network import PARTS
from llmprobe.synthetic.tasks import TASKS
from llmprobe.synthetic.variants import PLACES

EXPECTED = {
    "prompts": list(Prompts.kinds),
    "kinds": [f"{name}, {plot}" for name, kind in known_kinds().items() for plot in kind.plots],
}


def test_without_a_name_the_lists_are_listed(call):
    code, out, _ = call("ls")
    assert code == 0
    names = {*EXPECTED, "tasks", "variants", "remedies"}
    assert {line.split()[0] for line in out.splitlines()} == names


@pytest.mark.parametrize("what", EXPECTED)
def test_every_name_has_a_line_that_says_what_it_is(call, what):
    code, out, err = call("ls", what)
    assert (code, err) == (0, "")
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert list(lines) == list(dict.fromkeys(EXPECTED[what]))
    assert all(meaning.strip() for meaning in lines.values())
    assert json.loads(call("ls", what, "--json")[1]).keys() == lines.keys()


def groups(out):
    """The names below each heading, and what is said of each."""
    found, title = {}, ""
    for line in out.splitlines():
        if line.startswith("  "):
            name, words = line.strip().split("  ", 1)
            found[title][name] = words.strip()
        else:
            title = line.removesuffix(":")
            found[title] = {}
    return found


def test_tasks_are_grouped_by_kind(call):
    code, out, err = call("ls", "tasks")
    assert (code, err) == (0, "")
    found = groups(out)
    assert {title: list(names) for title, names in found.items()} == {
        kind: [name for name, task in TASKS.items() if task.kind == kind]
        for kind in dict.fromkeys(task.kind for task in TASKS.values())
    }
    assert len(found) == 3
    assert all(words for names in found.values() for words in names.values())
    assert json.loads(call("ls", "tasks", "--json")[1]) == found


def test_variants_are_grouped_by_the_place_that_they_change(call):
    code, out, err = call("ls", "variants")
    assert (code, err) == (0, "")
    found = groups(out)
    assert json.loads(call("ls", "variants", "--json")[1]) == found
    assert "baseline" in found.pop("all tasks")
    baselines = found.pop("baselines of decoders")
    assert "othello" in baselines["mlp+prenorm+rotary"]
    expected = {f"{place}, {words}": set() for place, words in PLACES.items()}
    for parts in (PARTS, DECODER_PARTS):
        for name, part in parts.items():
            expected[f"{part.place}, {PLACES[part.place]}"].add(name)
    assert {title: set(names) for title, names in found.items()} == expected
    assert all(expected.values())
    assert all(words for names in found.values() for words in names.values())
