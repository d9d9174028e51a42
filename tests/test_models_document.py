"""docs/models.md names every family of the tests as served or refused, and no other."""

import re

import pytest
from checkout import ROOT
from encoder_decoders import ENCODER_DECODERS
from encoders import ENCODERS
from encoders import REFUSED as REFUSED_ENCODERS
from families import FAMILIES, OUTSIDE
from other_kinds import OTHER_KINDS, WITH_IMAGES

from llmprobe.capture.parts import PARTS

TEXT = (ROOT / "docs" / "models.md").read_text()
REFUSED_DECODERS = {name for name, x in ENCODER_DECODERS.items() if set(x.refused) == set(PARTS)}
TWO_MODELS = {"encoder-decoder"}
ROWS: dict[str, tuple[set[str], set[str]]] = {
    "causal": (set(FAMILIES), set(OUTSIDE) | {"mamba"}),
    "encoder": (set(ENCODERS), set(REFUSED_ENCODERS)),
    "encoder-decoder": (
        set(ENCODER_DECODERS) - REFUSED_DECODERS,
        REFUSED_DECODERS | TWO_MODELS,
    ),
    "text with images": (set(WITH_IMAGES), set()),
    "other": (set(), set(OTHER_KINDS) - TWO_MODELS),
}


def cells(kind: str) -> list[str]:
    table = TEXT.split("## Tested families")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return next(row[1:] for row in rows if row[0].strip() == kind)


@pytest.mark.parametrize("kind", ROWS)
def test_every_family_is_served_or_refused(kind):
    for cell, expected in zip(cells(kind), ROWS[kind], strict=True):
        assert set(re.findall(r"`([^`]+)`", cell)) == expected


def test_families_that_lack_a_part_are_named_with_it():
    lacking = {name for name, x in ENCODER_DECODERS.items() if set(x.refused) == {"encoder"}}
    served, without = cells("encoder-decoder")[0].split(";")
    assert "without the encoder" in without
    assert set(re.findall(r"`([^`]+)`", without)) == lacking
    assert all(
        set(x.refused) in (set(), {"encoder"}, set(PARTS)) for x in ENCODER_DECODERS.values()
    )
    assert not set(re.findall(r"`([^`]+)`", served)) & lacking


def test_there_are_as_many_as_the_documents_say():
    served = {(kind, name) for kind, (names, _) in ROWS.items() for name in names}
    said = re.search(r"\[Over (\d+) families\]", (ROOT / "docs" / "capture.md").read_text())
    assert said is not None
    assert int(said[1]) < len(served) <= int(said[1]) + 10
