"""llmprobe: what happens to attention as prompts get longer.

The public surface is the table below. A name is imported when it is first used, so that
`import llmprobe` costs nothing and a saved result opens where torch is not installed.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "capture_attention": "capture",
    "capture_rows": "patterns",
    "attention_layers": "discovery",
    "check_capture": "checks",
    "load_model": "models",
    "LoadedModel": "models",
    "probe_attention": "dispersion",
    "probe_variance": "probing",
    "train_synthetic": "synthetic.lab",
    "load_synthetic": "synthetic.lab",
    "SyntheticResult": "synthetic.outcomes",
    "LegalityResult": "synthetic.legality",
    "SearchResult": "synthetic.findings",
    "balanced": "synthetic.complement",
    "logit_displacement": "synthetic.complement",
    "solve_complement": "synthetic.complement",
    "wrong_mass": "synthetic.complement",
    "Groups": "stats",
    "Histogram": "stats",
    "Moments": "stats",
    "TopK": "stats",
    "fit_decay": "decay",
    "parse_lengths": "lengths",
    "paper_style": "plots",
    "load_result": "kinds",
    "merge_results": "merging",
    "AttentionResult": "kinds",
    "VarianceResult": "kinds",
    "LLMProbeError": "errors",
    "CaptureError": "errors",
    "CheckpointError": "errors",
    "ModelLoadError": "errors",
    "OutOfMemoryError": "errors",
    "PromptError": "errors",
    "UnsupportedModelError": "errors",
    "ResultExistsError": "errors",
    "ResultFormatError": "errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'llmprobe' has no attribute {name!r}")
    value = getattr(import_module(f"llmprobe.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
