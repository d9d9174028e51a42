"""Whatever llmprobe raises on purpose can be caught by one name."""

import inspect

import llmprobe
from llmprobe import errors


def test_all_errors_share_a_base_and_are_public():
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(kind, errors.LLMProbeError)
        assert getattr(llmprobe, name) is kind
