"""Result folders of strangers: refused in one line, or opened and usable; nothing else happens."""

import copy
import json
import os
import random
import tracemalloc

import pytest
from answer_samples import make_answers_result
from legal_samples import make_legality_result
from mechanism_samples import make_mechanism_result
from samples import (
    make_ablation_result,
    make_loss_result,
    make_remedy_result,
    make_retrieval_result,
    make_synthetic_result,
    make_variance_result,
)
from search_samples import make_search_result, make_set_search_result

from llmprobe import load_result, probe_attention
from llmprobe.errors import ResultFormatError

MAKE = {
    "variance": make_variance_result,
    "attention": lambda: probe_attention("builtin", "4..16", n_prompts=4),
    "loss": make_loss_result,
    "ablation": make_ablation_result,
    "remedy": make_remedy_result,
    "retrieval": make_retrieval_result,
    "synthetic": make_synthetic_result,
    "legality": make_legality_result,
    "answers": make_answers_result,
    "search": make_search_result,
    "mechanism": make_mechanism_result,
    "set-search": lambda: make_set_search_result(5),  # too few for resampled intervals
}
N_FORGED = 90
"""Of each kind."""
HOSTILE = (
    *(None, True, -1, 0, 1.5, 10**400, 1e308, "", "x" * 10_000, "../../etc", "\x00", [], {}),
    *([[]], {"a": {"b": []}}, [1e9] * 50, "__import__('os').system('touch owned')"),
    *({"dtype": "|O", "shape": [1]}, {"dtype": "<f8", "shape": [2**40]}),
    {"dtype": "<f8", "shape": [2**31, 2**31, 4]},
)


def places(node, path=()):
    """The paths of everything in a document."""
    yield path
    if isinstance(node, list):
        node = dict(enumerate(node))
    for key, child in node.items() if isinstance(node, dict) else ():
        yield from places(child, (*path, key))


def change(document, path, value, *, remove):
    document = copy.deepcopy(document)
    at = document
    for key in path[:-1]:
        at = at[key]
    if remove and isinstance(at, dict):
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def forge_document(folder, generator):
    path = folder / "result.json"
    document = json.loads(path.read_text())
    chosen = generator.choice([place for place in places(document) if place])
    remove = generator.random() < 0.2
    path.write_text(json.dumps(change(document, chosen, generator.choice(HOSTILE), remove=remove)))


def cut(folder, generator):
    path = folder / generator.choice(("result.json", "arrays.npz"))
    os.truncate(path, generator.randrange(path.stat().st_size))


def flip(folder, generator):
    path = folder / generator.choice(("result.json", "arrays.npz"))
    data = bytearray(path.read_bytes())
    for _ in range(generator.randrange(1, 20)):
        data[generator.randrange(len(data))] = generator.randrange(256)
    path.write_bytes(data)


def enlarge(folder, generator):
    """A file that says it is large, and takes no space."""
    os.truncate(folder / generator.choice(("result.json", "arrays.npz")), 2**33)


FORGERS = (forge_document,) * 6 + (cut, flip, flip, enlarge)


def use(result):
    """Whatever opens must serve: its words, its table, its document, and itself again."""
    assert result.headline()
    assert len(result.to_frame()) > 0
    assert json.dumps(result.to_document())


def opened(folder):
    """The result, or the error that says why there is none; and the most memory it took."""
    tracemalloc.start()
    try:
        return load_result(folder), tracemalloc.get_traced_memory()[1]
    except ResultFormatError as error:
        return error, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", MAKE)
def test_a_forged_folder_is_refused_or_serves(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    genuine = MAKE[kind]()
    generator = random.Random(kind)
    n_refused = 0
    for number in range(N_FORGED):
        folder = genuine.save(tmp_path / str(number))
        generator.choice(FORGERS)(folder, generator)
        result, peak = opened(folder)
        assert peak < 200 * 2**20
        if isinstance(result, ResultFormatError):
            assert "\n" not in str(result)
            n_refused += 1
        else:
            use(result)
        assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "result.json"]
    assert n_refused > N_FORGED / 2
    assert len(list(tmp_path.iterdir())) == N_FORGED
