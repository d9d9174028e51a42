"""`remedy`: a table, figures, one JSON document, resume, and refusals in one line."""

import json

from llmprobe.commands.naming import default_folder
from llmprobe.commands.running import _defaults
from llmprobe.probes.remedy_request import RemedyRequest

QUICK = ("--lengths", "8,32", "--n-prompts", "3", "--doses", "1", "--trained", "16", "--quiet")


def test_it_prints_a_table_draws_and_resumes(call, tmp_path):
    options = (*QUICK, "--remedies", "logn,temperature", "--output", tmp_path / "run")
    code, out, err = call("remedy", "builtin", *options)
    assert code == 0, err
    assert out.startswith("remedies for builtin: of 2 at 1 dose,")
    assert "At 9 to 32 tokens" in out
    assert (tmp_path / "run" / "remedy.png").is_file()
    document = json.loads(call("remedy", "builtin", *options, "--json")[1])
    assert document["kind"] == "remedy"
    assert document["verdicts"].keys() == {"logn", "temperature"}


def test_a_folder_is_named_after_what_is_not_the_default():
    defaults = _defaults(RemedyRequest)

    def folder(**given):
        given = vars(RemedyRequest(**given)) | {"doses": given.get("doses", "0,0.5,1,2")}
        return str(default_folder("remedy", "builtin", given, defaults=defaults))

    assert folder() == "runs/remedy-builtin"
    assert folder(doses="1") == "runs/remedy-builtin-doses-1"


def test_refusals_are_one_line_in_options(call, tmp_path):
    cases = {
        ("--remedies", "prayer"): "--remedies: got 'prayer', accepted: logn",
        ("--doses", "-1"): "--doses: got '-1', accepted",
        ("--heads", "0.99"): "--heads: got 0.99, accepted",
        ("--remedies", "restore"): "--variance: got none, but restore needs one",
        ("--rope", "ntk"): "--rope: got 'ntk', accepted",
    }
    for words, expected in cases.items():
        code, _, err = call("remedy", "builtin", *QUICK, *words, "--output", tmp_path / "no")
        assert (code, len(err.splitlines())) == (1, 1), err
        assert expected in err


def test_remedies_are_listed(call):
    code, out, _ = call("ls", "remedies")
    assert code == 0
    assert "logn" in out
    assert "restore" in out
