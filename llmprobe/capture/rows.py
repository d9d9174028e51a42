"""Where chosen queries look: rows of the attention weights and their statistics, in linear memory.

    with capture_rows(model, positions=[15, -1]) as rows:
        model(**batch)
    rows[0].entropy     # (batch, 2, heads)

A row has the weights of one query over all tokens. It need not sum to one (learned sinks take a
share), so its mass is kept next to the statistics, and nothing is normalized but the rest of a row
without the prompt's first token, which may be a sink. Modules that look up their attention function
by name compute only the chosen rows; the others compute the whole matrix, if it fits in memory.

Logits are those that the family's softmax gets, of the keys that a query sees; the logit of a
learned sink is not among them. Modules that compute attention on their own show weights alone:
there the logits are their logarithms, and keys with a weight of zero count as not seen.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from llmprobe.base.machine import free_memory
from llmprobe.capture.calls import AttentionCall, listening, own_forward
from llmprobe.capture.discovery import AttentionLayer, LayerChoice, eager_weights
from llmprobe.capture.loading import AnyModel
from llmprobe.capture.session import Positions, Session, tokens_of
from llmprobe.capture.value_sums import ValueSums
from llmprobe.errors import CaptureError, OutOfMemoryError

_ASK = "output_attentions"


@dataclass(frozen=True)
class Rows:
    """Statistics of attention rows; all shapes begin with (batch, positions, heads)."""

    entropy: Tensor
    """−Σ a ln a, in nats."""
    effective: Tensor
    """Effective tokens, 1 / Σ a²."""
    squares: Tensor
    """Σ a²."""
    first: Tensor
    """Weight on the prompt's first token."""
    mass: Tensor
    """Σ a: one, unless a learned sink takes a share."""
    n_keys: Tensor
    """n, the number of keys that the query sees."""
    entropy_share: Tensor
    """Entropy / ln n; NaN where n is 1."""
    entropy_rest: Tensor
    """Entropy of the row without the prompt's first token, the rest scaled to sum to one; NaN
    where nothing is left."""
    entropy_share_rest: Tensor
    """The same over the logarithm of the keys that are left."""
    squares_rest: Tensor
    """Σ a² of the row without the first token, scaled likewise."""
    spread: Tensor
    """Largest minus smallest logit."""
    log_lambda: Tensor
    """ln Λ, Λ = max over k ≥ 2 of ln k / Δ_k, with Δ_k the gap of the k-th largest logit from the
    largest (arXiv 2605.12697). Λ > 1: at the model's temperature the row is dispersed. Λ is
    infinite where the largest logit is there twice, so for uniform rows; 0 for one-hot rows."""
    top: Tensor
    """The k largest weights, largest first: (..., k); zeros where there are fewer tokens."""
    top_positions: Tensor
    """Their positions, counted from the prompt's first token; −1 where the weight is zero."""
    weights: Tensor | None
    """The rows themselves (..., tokens) with `weights=True`, else None."""
    values: ValueSums | None = None
    """Sums over weights and values with `values=True`, where a module shows its values."""

    @classmethod
    def of(
        cls,
        weights: Tensor,
        starts: Tensor,
        *,
        k: int,
        keep: bool,
        logits: Tensor | None = None,
    ) -> "Rows":
        """From weights (batch, heads, positions, tokens); prompts begin at `starts` (batch,).

        `logits` are −inf where a key is masked; None: the logarithms of the weights.
        """
        rows = weights.detach().transpose(1, 2).float()
        scores = rows.log() if logits is None else logits.detach().transpose(1, 2).float()
        n_top = min(k, rows.shape[-1])
        top, where = rows.topk(n_top, dim=-1)
        where = (where - starts[:, None, None, None]).where(top > 0, -1)
        missing = (0, k - n_top)
        at_first = starts[:, None, None, None].expand(*rows.shape[:-1], 1)
        entropy, squares = _entropy(rows), rows.square().sum(-1)
        rest = rows.scatter(-1, at_first, 0.0)
        rest /= rest.sum(-1, keepdim=True)
        entropy_rest = _entropy(rest)
        seen = scores != -torch.inf
        n_keys = seen.sum(-1)
        n_rest = n_keys - seen.gather(-1, at_first).squeeze(-1).long()
        return cls(
            entropy=entropy,
            effective=1 / squares,
            squares=squares,
            first=rows.gather(-1, at_first).squeeze(-1),
            mass=rows.sum(-1),
            n_keys=n_keys.float(),
            entropy_share=_share(entropy, n_keys),
            entropy_rest=entropy_rest,
            entropy_share_rest=_share(entropy_rest, n_rest),
            squares_rest=rest.square().sum(-1),
            spread=scores.amax(-1) - scores.where(seen, torch.inf).amin(-1),
            log_lambda=_log_lambda(scores),
            top=nn.functional.pad(top, missing),
            top_positions=nn.functional.pad(where, missing, value=-1),
            weights=rows.clone() if keep else None,
        )

    @classmethod
    def join(cls, parts: list["Rows"], *, dim: int) -> "Rows":
        whole: Rows = _cat(parts, dim)
        return whole


def capture_rows(
    model: AnyModel,
    layers: LayerChoice = None,
    *,
    part: str | None = None,
    positions: Positions = -1,
    k: int = 16,
    weights: bool = False,
    values: bool = False,
    stop: bool = False,
    into: Callable[[int, Rows], object] | None = None,
) -> "RowCapture":
    """A context manager that captures attention rows of chosen queries, for each head.

    `model`, `layers`, `part`, `positions`, `stop` and `into` are as in `capture_attention`; `k` is
    how many of the largest weights to keep; `weights=True` keeps the whole rows, `values=True` sums
    over weights and values, such as Σ a² v.
    """
    if positions is None:
        raise ValueError(
            "positions: got None, accepted: a number or a list of numbers (the rows of all "
            "positions would be the whole matrix)"
        )
    if k < 1:
        raise ValueError(f"k: got {k}, accepted: 1 or more")
    return RowCapture(
        model,
        positions=positions,
        layers=layers,
        part=part,
        k=k,
        weights=weights,
        values=values,
        stop=stop,
        into=into,
    )


class _MatrixDoesNotFit(CaptureError, OutOfMemoryError):
    """A capture that failed because a matrix does not fit in memory."""


class _MatricesDoNotFit(_MatrixDoesNotFit, MemoryError):
    """The same for several prompts: as a `MemoryError` it makes a sweep retry with fewer."""


class RowCapture(Session[Rows]):
    """What `capture_rows` gives: a mapping from layer number to `Rows`, filled by forwards."""

    def __init__(
        self,
        model: AnyModel,
        *,
        positions: Positions,
        layers: LayerChoice,
        part: str | None,
        k: int,
        weights: bool,
        values: bool,
        stop: bool,
        into: Callable[[int, Rows], object] | None,
    ) -> None:
        super().__init__(model, layers=layers, part=part, positions=positions, stop=stop, into=into)
        self.k = k
        self.weights = weights
        self._with_values = values
        self._whole = [layer for layer in self.layers if not layer.interface]

    def attach(self, stack: ExitStack) -> None:
        by_module = {id(self.module(layer)): layer for layer in self.layers if layer.interface}
        modules = [self.module(layer) for layer in self.layers if layer.interface]

        def listen(call: AttentionCall) -> None:
            batch, _, length, _ = call.query.shape
            index = self.index(batch, length, call.query.device)
            starts = self.key_starts(batch, length, call.key.shape[2], call.query.device)
            parts, done = [], 0
            for weights, logits in call.scores(index):
                rows = self._rows(weights, logits, starts=starts)
                if self._with_values:
                    # With a KV cache the first query here is not the first key.
                    queries = index[:, done : done + weights.shape[2]] + call.key.shape[2] - length
                    if self.deepest.cross:  # no key is the query's own
                        queries = starts[:, None].expand_as(queries)
                    sums = ValueSums.of(weights, call.value, starts=starts, queries=queries)
                    rows = replace(rows, values=sums)
                parts.append(rows)
                done += weights.shape[2]
            self.see(by_module[id(call.module)], Rows.join(parts, dim=1))

        if self._whole:
            stack.enter_context(eager_weights(self.model, self._whole))
        stack.enter_context(listening(modules, listen))
        for layer in self._whole:
            ask = partial(self.module(layer).register_forward_pre_hook, self._ask, with_kwargs=True)
            self.own(stack, ask)
            hook = self._weights_hook(layer)
            self.own(stack, partial(self.module(layer).register_forward_hook, hook))

    def before_forward(self, given: dict[str, Any]) -> None:
        """Refuse whole matrices that do not fit in memory."""
        tokens = tokens_of(given)
        square = [layer for layer in self._whole if not layer.last_only]
        if not square or tokens is None:
            return
        batch, length = tokens.shape[:2]
        n_heads = max(layer.n_heads for layer in square)
        need = 3 * 4 * batch * n_heads * length**2  # scores, weights, and a temporary copy
        free = free_memory(tokens.device)
        if need > free:
            alone = batch == 1
            what = "a prompt" if alone else f"{batch} prompts"
            remedy = "shorter prompts" if alone else "fewer prompts at a time, or shorter ones"
            raise (_MatrixDoesNotFit if alone else _MatricesDoNotFit)(
                f"attention rows of {type(self.model).__name__} need whole matrices: "
                f"{need / 2**20:,.2f} MiB for {what} of {length} tokens, "
                f"{free / 2**20:,.2f} MiB are free; use {remedy}"
            )

    def _ask(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Some modules return their weights only if they are asked to (MPNet)."""
        parameters = list(inspect.signature(own_forward(module)).parameters)[1:]
        if kwargs is None or not self.here() or _ASK not in parameters:
            return None
        at = parameters.index(_ASK)
        if at < len(args):
            return (*args[:at], True, *args[at + 1 :]), kwargs
        return args, kwargs | {_ASK: True}

    def _weights_hook(self, layer: AttentionLayer) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not self.here():
                return
            length = output[0].shape[1]
            # For a single query some modules return (batch, heads, tokens).
            given = [x for x in output[1:] if isinstance(x, Tensor)]
            given = [x[:, :, None] if layer.last_only and x.ndim == 3 else x for x in given]
            weights = _weights_among(given, module, length)
            if weights is None:
                raise CaptureError(
                    f"{layer.path} ({type(module).__name__}) returned no attention weights, or "
                    "negative ones, so it has no rows to capture"
                )
            rows = self.take(layer, weights.transpose(1, 2)).transpose(1, 2)
            starts = self.key_starts(len(weights), length, weights.shape[3], weights.device)
            self.see(layer, self._rows(rows, starts=starts))

        return hook

    def _rows(self, weights: Tensor, logits: Tensor | None = None, *, starts: Tensor) -> Rows:
        return Rows.of(weights, starts, k=self.k, keep=self.weights, logits=logits)

    def join(self, layer: int, parts: list[Rows]) -> Rows:
        lengths = {part.weights.shape[-1] for part in parts if part.weights is not None}
        if len(lengths) > 1:
            raise CaptureError(
                f"whole rows of layer {layer} have lengths {', '.join(map(str, sorted(lengths)))} "
                "and cannot be joined; use `into`, or prompts of one length"
            )
        return Rows.join(parts, dim=0)


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(-1)


def _share(entropy: Tensor, n_keys: Tensor) -> Tensor:
    """Of the entropy of uniform weights; NaN where there is one key, or none."""
    return torch.where(n_keys > 1, entropy / n_keys.clamp(min=2).log(), torch.nan)


def _log_lambda(logits: Tensor) -> Tensor:
    """ln Λ of logits (batch, positions, heads, tokens), one position at a time to save memory."""
    ranks = torch.arange(2, logits.shape[-1] + 1, device=logits.device).float().log()

    def largest(logits: Tensor) -> Tensor:
        ordered = logits.sort(dim=-1, descending=True).values
        ratios = ranks / (ordered[..., :1] - ordered[..., 1:])  # masked: gap ∞, ratio 0
        return nn.functional.pad(ratios, (0, 1)).amax(-1)

    return torch.stack([largest(x) for x in logits.unbind(1)], dim=1).log()


_known: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()
"""Which of a module's outputs that have the shape of weights are weights."""


def _weights_among(given: list[Tensor], module: nn.Module, length: int) -> Tensor | None:
    """The first that has their shape and no negative number."""
    fitting = [x for x in given if x.ndim == 4 and x.shape[2] == length <= x.shape[3]]
    # On a GPU a look at the numbers would wait for it, in each layer: there once for a module.
    if module in _known and len(fitting) > _known[module] and fitting[0].device.type != "cpu":
        return fitting[_known[module]]
    for number, x in enumerate(fitting):
        if bool((x >= 0).all()):
            _known[module] = number
            return x
    return None


def _cat(parts: list[Any], dim: int) -> Any:
    """Tensors joined, or what has tensors as fields; None where a part is missing."""
    if len(parts) == 1 or any(part is None for part in parts):
        return parts[0] if len(parts) == 1 else None
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim=dim)
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(**{n: _cat([getattr(part, n) for part in parts], dim) for n in names})
