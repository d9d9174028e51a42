"""`llmprobe ablate` prints the change of the loss and saves it."""

import json


def test_ablate_prints_one_document(call, tmp_path):
    folder = tmp_path / "run"
    code, out, err = call(
        *("ablate", "builtin", "--heads", "0.0,0.1", "--lengths", "8,16", "--n-prompts", "4"),
        *("--json", "--quiet", "--output", folder),
    )
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert {row["class"] for row in document["rows"]} == {"0.0,0.1", "0.0,0.1, random 1"}
    assert (folder / "ablation.png").is_file()
