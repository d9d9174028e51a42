"""What can be joined at all; how is tested with each wing's `joining`."""

import pytest
from samples import make_attention_result, make_variance_result

from llmprobe import merge_results
from llmprobe.results.opening import known_kinds


def test_every_kind_says_who_joins_it():
    joins = {kind.joins for kind in known_kinds().values()}
    assert {name.split(".")[1] for name in joins} == {"probes", "synthetic"}


def test_two_or_more_folders_of_one_kind_are_needed(tmp_path):
    variance = make_variance_result().save(tmp_path / "variance")
    attention = make_attention_result().save(tmp_path / "attention")
    for folders in ([], [variance], [variance, variance]):
        with pytest.raises(ValueError, match="accepted: two or more different folders"):
            merge_results(folders, tmp_path / "out")
    with pytest.raises(ValueError, match="accepted: results of one kind"):
        merge_results([variance, attention], tmp_path / "out")
    assert not (tmp_path / "out").exists()
