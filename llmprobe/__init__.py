"""llmprobe: what happens to attention as prompts get longer.

The public surface is the table below. A name is imported when it is first used, so that
`import llmprobe` costs nothing and a saved result opens where torch is not installed.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "capture_attention": "capture.outputs",
    "capture_rows": "capture.rows",
    "Rows": "capture.rows",
    "edit_attention": "capture.editing",
    "scale_logits": "capture.edits",
    "scale_outputs": "capture.edits",
    "ablate": "capture.edits",
    "restore": "probes.treatments",
    "attention_layers": "capture.discovery",
    "AttentionLayer": "capture.discovery",
    "check_capture": "capture.checks",
    "token_losses": "capture.losses",
    "load_model": "capture.loading",
    "LoadedModel": "capture.loading",
    "probe_ablation": "probes.ablation",
    "probe_attention": "probes.attention",
    "probe_loss": "probes.loss",
    "probe_remedies": "probes.remedies",
    "probe_retrieval": "probes.retrieval",
    "probe_variance": "probes.variance",
    "make_prompts": "probes.prompts",
    "train_synthetic": "synthetic.lab",
    "search_synthetic": "synthetic.lab",
    "load_synthetic": "synthetic.lab",
    "explain_synthetic": "synthetic.mechanism",
    "train_variates": "synthetic.variates",
    "draw_variates": "synthetic.variates",
    "forecast_errors": "synthetic.variates",
    "SyntheticResult": "results.accuracy",
    "LegalityResult": "results.legality",
    "AnswersResult": "results.answers",
    "SearchResult": "results.search",
    "SetSearchResult": "results.set_search",
    "MechanismResult": "results.mechanism",
    "balanced": "synthetic.complement",
    "logit_displacement": "synthetic.complement",
    "solve_complement": "synthetic.complement",
    "wrong_mass": "synthetic.complement",
    "Groups": "base.moments",
    "Moments": "base.moments",
    "fit_decay": "base.intervals",
    "rank_correlation": "base.intervals",
    "parse_lengths": "base.lengths",
    "paper_style": "results.figures.style",
    "load_result": "results.opening",
    "merge_results": "runs.merging",
    "write_report": "results.report.page",
    "Result": "results.base",
    "AblationResult": "results.ablation",
    "AttentionResult": "results.attention",
    "LossResult": "results.loss",
    "RetrievalResult": "results.retrieval",
    "VarianceResult": "results.variance",
    "RemedyResult": "results.remedy",
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
