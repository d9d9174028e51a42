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
    "tasks": list(TASKS),
    "prompts": list(Prompts.kinds),
    "kinds": [f"{name}, {plot}" for name, kind in known_kinds().items() for plot in kind.plots],
}


def test_without_a_name_the_lists_are_listed(call):
    code, out, _ = call("ls")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {*EXPECTED, "variants", "remedies"}


@pytest.mark.parametrize("what", EXPECTED)
def test_every_name_has_a_line_that_says_what_it_is(call, what):
    code, out, err = call("ls", what)
    assert (code, err) == (0, "")
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert list(lines) == list(dict.fromkeys(EXPECTED[what]))
    assert all(meaning.strip() for meaning in lines.values())
    assert json.loads(call("ls", what, "--json")[1]).keys() == lines.keys()


def test_variants_are_listed_by_the_place_that_they_change(call):
    code, out, err = call("ls", "variants")
    assert (code, err) == (0, "")
    place, found = None, {}
    for line in out.splitlines():
        if line.startswith("  "):
            name, meaning = line.strip().split("  ", 1)
            assert meaning.strip()
            found.setdefault(name, set()).add(place)
        else:
            place = line.partition(":")[0]
    expected = {}
    for parts in (PARTS, DECODER_PARTS):
        for name, part in parts.items():
            expected.setdefault(name, set()).add(part.place)
    assert found == expected
    assert set(PLACES) == set().union(*expected.values())
    assert json.loads(call("ls", "variants", "--json")[1]).keys() == {"baseline", *expected}
