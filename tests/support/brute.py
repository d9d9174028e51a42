"""The probes by brute force: a forward a prompt, everything kept, numpy at the end."""

from itertools import combinations
from typing import Any

import numpy as np
import torch
from devices import DEVICE

from llmprobe.capture.discovery import attention_layers


def outputs(model: Any, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
    """Last outputs by module, by plain hooks: {"output": {layer: (B, F)}, "heads": {...}}."""
    kept: dict[str, dict[int, np.ndarray]] = {"output": {}, "heads": {}}
    handles = []
    for layer in attention_layers(model):

        def project(module, args, output, layer=layer):
            heads = args[0][:, -1].unflatten(-1, (layer.n_heads, -1))
            kept["heads"][layer.layer] = heads.cpu().numpy()
            kept["output"][layer.layer] = output[:, -1].cpu().numpy()

        handles.append(model.get_submodule(layer.projection).register_forward_hook(project))
    inputs: dict[str, Any] = {"input_ids": tokens}
    if mask is not None:
        inputs |= {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        model(**{name: x.to(DEVICE) for name, x in inputs.items()})
    for handle in handles:
        handle.remove()
    return kept


def gather(model: Any, prompts: Any, lengths: tuple[int, ...], at: str, *, left_padded: bool):
    """(prompts, lengths, layers, *heads, features); optionally all lengths in one padded batch."""
    found = []
    for index in range(prompts.n_prompts):
        if left_padded:
            tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
            mask = torch.zeros_like(tokens)
            for row, length in enumerate(lengths):
                tokens[row, -length:] = prompts.batch([index], length)[0]
                mask[row, -length:] = 1
            kept = outputs(model, tokens, mask)[at]
            found.append(np.stack([kept[layer] for layer in sorted(kept)], axis=1))
        else:
            alone = [outputs(model, prompts.batch([index], length))[at] for length in lengths]
            found.append(np.stack([[k[layer][0] for layer in sorted(k)] for k in alone]))
    return np.stack(found).astype(np.float64)


def split(x: np.ndarray, n_queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Variance in all and within queries, by pairs; all queries have as many prompts of x."""
    within, across = [], []
    for i, j in combinations(range(len(x)), 2):
        (within if i % n_queries == j % n_queries else across).append((x[i] - x[j]) ** 2 / 2)
    return np.mean(across, axis=0), np.mean(within, axis=0)


def statistics(
    x: np.ndarray, component: int, at_reference: int, *, n_queries: int = 1
) -> dict[str, np.ndarray]:
    """The columns of the frame, (series, lengths), from x (prompts, lengths, *series, features)."""
    n_prompts, n_lengths, *_, n_features = x.shape
    x = x.reshape(n_prompts, n_lengths, -1, n_features)
    variance, within = x.var(axis=0, ddof=1), np.full(x.shape[1:], np.nan)
    if n_queries > 1:
        variance, within = split(x, n_queries)
    std = np.sqrt(variance)
    mean = x.mean(axis=0)
    global_mean = x.mean(axis=-1).mean(axis=0)
    global_variance = x.var(axis=-1).mean(axis=0)
    reference = mean[at_reference]
    distance = np.sqrt(((mean - reference) ** 2).sum(axis=-1))
    columns = {
        "component_std": std[..., component],
        "std_q25": np.quantile(std, 0.25, axis=-1),
        "std_median": np.median(std, axis=-1),
        "std_q75": np.quantile(std, 0.75, axis=-1),
        "global_mean": global_mean,
        "global_variance": global_variance,
        "mean_drift": (global_mean - global_mean[at_reference]) / global_variance[at_reference],
        "vector_drift": distance / np.sqrt((std[at_reference] ** 2).sum(axis=-1)),
        "total_variance": variance.sum(axis=-1),
        "within_variance": within.sum(axis=-1),
        "between_variance": (variance - within).sum(axis=-1),
    }
    return {name: values.T for name, values in columns.items()}


def row_numbers(weights: np.ndarray, logits: np.ndarray | None = None) -> dict[str, float]:
    """Statistics of one row of attention; its first entry is the prompt's first token."""
    a = weights.astype(np.float64)
    with np.errstate(divide="ignore"):
        scores = np.log(a) if logits is None else logits.astype(np.float64)
    seen = scores > -np.inf
    rest, seen_rest = a[1:], seen[1:]
    rest = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), np.nan)

    def entropy(p: np.ndarray) -> float:
        return float(-sum(x * np.log(x) if x > 0 else x for x in p))

    def share(value: float, n: int) -> float:
        return value / np.log(n) if n > 1 else np.nan

    ordered = sorted(scores[seen], reverse=True)
    found = 0.0
    for k in range(2, len(ordered) + 1):
        gap = ordered[0] - ordered[k - 1]
        found = max(found, np.log(k) / gap if gap > 0 else np.inf)
    nothing = not seen_rest.any()
    return {
        "entropy": entropy(a),
        "squares": float((a**2).sum()),
        "effective": float(1 / (a**2).sum()),
        "mass": float(a.sum()),
        "first": float(a[0]),
        "n_keys": float(seen.sum()),
        "entropy_share": share(entropy(a), seen.sum()),
        "entropy_rest": np.nan if nothing else entropy(rest),
        "entropy_share_rest": np.nan if nothing else share(entropy(rest), seen_rest.sum()),
        "squares_rest": np.nan if nothing else float((rest**2).sum()),
        "spread": float(ordered[0] - ordered[-1]),
        "log_lambda": float(np.log(found)) if found > 0 else -np.inf,
    }
