"""How a result is shown."""

import json

import pytest
from samples import make_synthetic_result, make_variance_result

from llmprobe.commands.showing import show_result


@pytest.mark.parametrize("make", [make_variance_result, make_synthetic_result])
def test_a_result_is_shown_with_its_notes_and_what_is_there(make, tmp_path, capsys):
    result = make()
    folder = result.save(tmp_path / "run")
    show_result(result, folder, as_json=False)
    out = capsys.readouterr().out
    assert out.startswith(result.headline())
    assert all(f"note: {note}" in out for note in result.warnings)
    assert out.endswith(f"saved: {folder} (result.json, arrays.npz)\n")
    show_result(result, folder, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["output"]) == (result.kind, "run")
