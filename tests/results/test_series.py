"""What results by layer, head and length share."""

import dataclasses

import pytest
from samples import make_variance_result

from llmprobe.results.base import Result
from llmprobe.results.series import SeriesResult


def test_the_base_of_series_is_no_kind():
    assert SeriesResult not in Result.kinds.values()


def test_a_frame_has_a_row_for_each_layer_head_and_length():
    result = make_variance_result(n_heads=3, lengths=(16, 64, 256))
    frame = result.to_frame()
    assert len(frame) == 2 * 3 * 3
    assert frame[["layer", "head", "length"]].drop_duplicates().shape == (18, 3)


def test_a_type_is_needed_for_every_series():
    with pytest.raises(ValueError, match="layer"):
        dataclasses.replace(make_variance_result(), layer_type=("full",))
