"""Laws of the public names, whatever they are: a new one is tested by being in the table."""

import dataclasses
import inspect

import pytest

import llmprobe

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CALLABLES = [name for name in llmprobe.__all__ if callable(getattr(llmprobe, name))]


def _positional(function):
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]


@pytest.mark.parametrize("name", CALLABLES)
def test_at_most_two_parameters_are_positional(name):
    value = getattr(llmprobe, name)
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    if dataclasses.is_dataclass(value):  # made by the library, field by field
        return
    assert len(_positional(value)) <= 2, _positional(value)


def test_results_are_made_by_keyword_alone():
    from llmprobe.results.base import Result

    for name in CALLABLES:
        value = getattr(llmprobe, name)
        if inspect.isclass(value) and issubclass(value, Result):
            assert _positional(value) == [], name


def test_captures_and_edits_take_the_same_two_things_first():
    names = ("capture_attention", "capture_rows", "edit_attention")
    assert [_positional(getattr(llmprobe, name)) for name in names] == [["model", "layers"]] * 3
