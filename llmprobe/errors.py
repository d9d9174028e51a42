"""The exceptions a caller may want to catch.

A wrong argument is a plain `ValueError`. Everything here is a fact about the world (a file, a
model, a machine) that a caller can handle; the command line prints it as one line.
"""


class LLMProbeError(Exception):
    """Base of all errors that llmprobe raises on purpose."""


class ResultFormatError(LLMProbeError):
    """A folder is not a result that this version can read: truncated, foreign, forged or newer."""


class ResultExistsError(LLMProbeError):
    """The output folder is already there, and overwriting was not asked for."""


class UnsupportedModelError(LLMProbeError):
    """The model has no attention that can be probed, or a path cannot serve this kind of it."""


class OutOfMemoryError(LLMProbeError):
    """A sweep does not fit the memory, whatever the batch and the chunk; or a capture does not."""


class CaptureError(LLMProbeError):
    """A capture could not be had: a hook stayed silent, a position is beyond the prompt."""


class ModelLoadError(LLMProbeError):
    """A model could not be loaded: not found, not allowed, damaged, too large, not a causal one."""


class PromptError(LLMProbeError):
    """A data set gave no text for prompts: not found, not reachable, damaged, without text."""


class CheckpointError(LLMProbeError):
    """A run cannot resume from what is in its folder: of other settings, or damaged."""
