"""A remedy's verdict needs a significant change, and one beyond its sham."""

import dataclasses

import numpy as np
import pytest
from checkout import shown_text
from samples import make_remedy_result


@pytest.fixture
def result():
    return make_remedy_result()


def test_verdicts_follow_from_the_changes(result):
    assert {name: result.verdict(name) for name in result.names()} == {
        "logn": "hurts",
        "adaptive": "no difference",
        "restore": "helps",
    }
    assert result.headline().startswith("remedies for toy: of 3 at 2 doses, restore helps")


def test_a_remedy_that_does_no_more_than_its_sham_is_called_so(result):
    like = dataclasses.replace(result, versus_sham_high=np.abs(result.versus_sham_high))
    assert like.verdict("restore") == "helps like its sham"
    assert "no more than its sham" in like.reading()
    assert "none helps" in like.headline()


def test_the_reading_says_how_large_a_difference_could_have_been_seen(result):
    words = result.reading()
    assert words.startswith("At 65 to 256 tokens: logn hurts")
    assert "A change of 0.020 nats would have been seen in four of five cases" in words
    assert "restore helps: at dose 1 the loss changes by −0.200 nats" in words


def test_what_changes_nothing_is_said_to(result):
    same = dataclasses.replace(result, change=result.change * 0, p=np.full(result.p.shape, np.nan))
    assert "logn changes nothing up to 256 tokens" in same.reading()


def test_holms_correction_is_over_remedies_doses_and_lengths(result):
    p = np.full(result.p.shape, np.nan)
    own = [n for n, arm in enumerate(result.arms) if arm == "remedy"]
    p[0, own, -1] = [0.009, 0.011, 0.5, 0.5, 0.5, 0.5]
    p[0, [n for n in range(len(result.arms)) if n not in own], -1] = 1e-9
    found = dataclasses.replace(result, p=p)
    assert not found.significant.any()
    p[0, own, -1] = [0.008, 0.011, 0.5, 0.5, 0.5, 0.5]
    assert dataclasses.replace(result, p=p).significant.sum() == 1


def test_the_frame_has_a_row_for_what_was_measured(result):
    frame = result.to_frame()
    assert len(frame) == 14 * 3 + 14
    assert set(frame[frame.measure == "key_loss"].length) == {256}
    row = frame[(frame.remedy == "restore") & (frame.dose == 1) & (frame.arm == "remedy")]
    last = row[(row.measure == "loss") & (row.length == 256)].iloc[0]
    assert (last.change, last.significant, last.baseline) == (-0.2, True, 3.6)
    assert last.n_prompts == 16


def test_slopes_name_their_treatment(result):
    frame = result.slope_frame()
    assert frame.groupby("remedy", sort=False).dose.first().to_dict() == {
        "untreated": 0.0,
        "logn": 1.0,
        "restore": 1.0,
    }
    assert (frame[frame.remedy == "untreated"].slope_change == 0).all()


def test_the_table_has_a_row_for_each_remedy_and_dose(result):
    text = shown_text(result.table())
    assert text.count("restore") == 4
    assert "Holm" in text


def test_the_document_has_verdicts_and_slopes(result):
    document = result.to_document()
    assert document["verdicts"]["restore"] == "helps"
    assert len(document["slopes"]) == 12


def test_the_command_is_that_of_the_run(result):
    arguments = {"lengths": [16, 64], "rope": None, "query": "free", "variance_hash": "0"}
    provenance = dataclasses.replace(result.provenance, arguments=arguments)
    made = dataclasses.replace(result, provenance=provenance)
    assert made.command() == "llmprobe remedy toy --lengths 16,64"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measures": ("luck", "loss")}, "measures"),
        ({"arms": ("remedy",) * 3}, "arms"),
        ({"context_length": 0}, "context_length"),
        ({"doses": np.ones(3)}, "doses has shape"),
        ({"slope_of": np.array([-1, 7, 99])}, "slope_of"),
        ({"remedies": ()}, "no remedy"),
    ],
)
def test_fields_that_do_not_fit_are_refused(result, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(result, **change)
