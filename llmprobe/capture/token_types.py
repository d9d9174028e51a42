"""The first attention module by token types: its projections once for each distinct token.

Without learned positions the input of the first attention module is a function of the token alone,
and so is what the module's projections make of it. A million tokens have at most one vocabulary of
distinct ones, so the projections of keys and values are computed once for each token and gathered:

    types = TokenTypes.found(model, layer, tokens)
    with capture_attention(model, 0, positions=[15, -1], stop=True) as captured:
        with types.serving(captured, tokens):
            model(tokens, use_cache=False)

The module's own forward runs, with norms, rotations and windows as they are; only children that get
the module's input return rows of a table. Whether a model may be run like that is found by a trial:
the same numbers must come out. Nothing here knows families.

A row has the same bits whatever was computed before it: blocks of tokens have one size.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from llmprobe.base.machine import is_out_of_memory
from llmprobe.base.transfers import upload
from llmprobe.capture.calls import Owner
from llmprobe.capture.discovery import AttentionLayer
from llmprobe.capture.outputs import AttentionCapture, capture_attention
from llmprobe.capture.single_positions import queries_of
from llmprobe.capture.wrapping import wrap_method

_BLOCK = (16, 64)
"""Prompts and tokens of a forward that computes rows."""
_N_HELD, _N_SAMPLED = 2048, 256
"""Tokens of a prompt whose outputs are compared, and positions of all of it, about."""
_EXACT, _ROUNDED = 2e-5, 0.05
"""Largest difference in a trial, relative to the root mean square of what is right."""


class NotServed(RuntimeError):
    """The capture needs more than the chosen positions, so types do not do."""


class _Enough(BaseException):
    """Ends a forward; no `Exception` for the reason that `_Stop` of sessions is none."""


class TokenTypes:
    """What the first attention module's children make of each token, kept by token."""

    def __init__(
        self, model: nn.Module, module: nn.Module, before: list[nn.Module], served: list[nn.Module]
    ) -> None:
        self.model, self.module = model, module
        self._before = before
        """Modules without children that run ahead of the attention module, token by token."""
        self._served = served
        self._queries = queries_of(module)
        self._tables: list[Tensor] = []
        self._row = torch.empty(0, dtype=torch.int64)
        """The row of each token; −1 for those that have none."""
        self._n_rows = self._capacity = 0

    @classmethod
    def found(cls, model: nn.Module, layer: AttentionLayer, tokens: Tensor) -> "TokenTypes | None":
        """None if this is not the first attention, or if it depends on more than the token."""
        length = tokens.shape[1]
        positions = sorted({0, length // 2, length - 1})
        if 2 * len(positions) > length or not layer.interface:
            return None
        try:
            expected, narrow = _captured(model, layer, tokens, positions)
            if not narrow:
                return None
            types = _traced(model, model.get_submodule(layer.path), tokens)
            got, _ = _captured(model, layer, tokens, positions, types)
        except Exception as error:  # such a model is run as it is
            if is_out_of_memory(error):
                raise
            return None
        return types if _same(got, expected) else None

    def holds(self, layer: AttentionLayer, tokens: Tensor) -> bool:
        """Whether other prompts, which may be long, give the same by types as without.

        The outputs of their first tokens are compared. Of long prompts the module's input and its
        projections tell as much for less: at some positions up to the last one.
        """
        first = tokens[:, :_N_HELD]
        last = first.shape[1] - 1
        positions = sorted({last // 4, last // 2, last})
        expected, _ = _captured(self.model, layer, first, positions)
        got, _ = _captured(self.model, layer, first, positions, self)
        return _same(got, expected) and self._holds_at_some(tokens)

    def _holds_at_some(self, tokens: Tensor) -> bool:
        step = max(1, tokens.shape[1] // _N_SAMPLED)
        some = torch.arange(tokens.shape[1] - 1, -1, -step, device=tokens.device)
        with torch.inference_mode():
            rows = self._rows(tokens[:, some])
            inputs = self._input_of(tokens)[:, some]
            pairs = [(self._input_of(tokens[:, some]), inputs)]
            for child, table in zip(self._served, self._tables, strict=True):
                pairs.append((table[rows], child(inputs)))
        return all(_same(got, expected) for got, expected in pairs)

    def learn(self, tokens: Tensor) -> None:
        """Compute the rows of all that will be needed, (n,), in as few blocks as possible."""
        self._capacity = self._n_rows + len(tokens)
        self._rows(tokens)

    @property
    def row_bytes(self) -> int:
        """Of one token in all tables."""
        return sum(table.shape[1] * table.element_size() for table in self._tables)

    @contextmanager
    def serving(
        self, capture: AttentionCapture, tokens: Tensor, *, fill: float | None = None
    ) -> Iterator[None]:
        """Serve one forward over these tokens, of a capture that is entered and that stops here.

        `fill` makes all that no one may look at that number, for a trial.
        """
        rows = self._rows(tokens)
        inputs = self._inputs(capture, tokens, fill)
        owner = Owner()

        def skip(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not owner.here() or not args or not _is_repeated(args[0], tokens):
                return forward(*args, **kwargs)
            return forward(args[0][:, :1], *args[1:], **kwargs).expand(-1, tokens.shape[1], -1)

        def attend(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not owner.here():
                return forward(*args, **kwargs)
            try:
                if "hidden_states" in kwargs:
                    return forward(*args, **(kwargs | {"hidden_states": inputs}))
                return forward(inputs, *args[1:], **kwargs)
            finally:
                if not capture.narrow:
                    raise NotServed("the attention module ran as a whole")

        def serve(table: Tensor) -> Callable[..., Any]:
            def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                part = _part_of(inputs, args) if owner.here() else None
                if part is None:
                    return forward(*args, **kwargs)
                wanted = rows[:, part]
                return table.index_select(0, wanted.flatten()).unflatten(0, wanted.shape)

            return around

        def refuse(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            part = _part_of(inputs, args) if owner.here() else None
            if part is not None and part.stop - part.start > 1:
                raise NotServed("the queries of all positions are wanted")
            return forward(*args, **kwargs)

        with ExitStack() as stack:
            stack.callback(owner.leave)
            for module in self._before:
                wrap_method(module, skip, stack)
            for child, table in zip(self._served, self._tables, strict=True):
                wrap_method(child, serve(table), stack)
            if self._queries is not None:
                wrap_method(self._queries, refuse, stack)
            wrap_method(self.module, attend, stack)
            yield

    def _inputs(self, capture: AttentionCapture, tokens: Tensor, fill: float | None) -> Tensor:
        """The module's input where the capture looks and at the first token; elsewhere nothing."""
        length = tokens.shape[1]
        wanted = {0, *(p % length for p in capture.positions or ())}
        index = upload(torch.tensor(sorted(wanted)), tokens.device)
        known = self._input_of(tokens[:, index])
        inputs = known.new_empty(*tokens.shape, known.shape[-1])
        if fill is not None:
            inputs.fill_(fill)
        inputs[:, index] = known
        return inputs

    def _input_of(self, tokens: Tensor) -> Tensor:
        found: list[Tensor] = []
        self._run(tokens, found.append)
        return found[0]

    def _run(self, tokens: Tensor, see: Callable[[Tensor], object]) -> None:
        """Let `see` have the module's input of these tokens, and end the forward there."""
        owner = Owner()

        def stop(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not owner.here():
                return forward(*args, **kwargs)
            see(_input(args, kwargs))
            raise _Enough

        with ExitStack() as stack:
            stack.callback(owner.leave)
            wrap_method(self.module, stop, stack)
            try:
                self.model(tokens, use_cache=False)
            except _Enough:
                return
        raise NotServed("the attention module did not run")

    def _rows(self, tokens: Tensor) -> Tensor:
        """The tokens' rows in the tables; those that are missing are computed."""
        with torch.inference_mode():
            here = tokens.cpu()  # the one wait for a device: which are new is found on the host
            most = int(here.max()) + 1
            if most > len(self._row):
                self._row = functional.pad(self._row, (0, most - len(self._row)), value=-1)
            missing = here[self._row[here] < 0].unique()
            for block in missing.split(_BLOCK[0] * _BLOCK[1]) if len(missing) else ():
                self._compute(block, tokens.device)
            return upload(self._row[here], tokens.device)

    def _compute(self, tokens: Tensor, device: torch.device) -> None:
        """Rows of new tokens, in a block that is filled up to its size."""
        n, start = len(tokens), self._n_rows
        spare = tokens[:1].expand(_BLOCK[0] * _BLOCK[1] - n)
        block = upload(torch.cat([tokens, spare]).view(_BLOCK), device)
        self._run(block, partial(self._append, n=n))
        self._row[tokens] = torch.arange(start, start + n)

    def _append(self, inputs: Tensor, n: int) -> None:
        made = [child(inputs).flatten(0, 1)[:n] for child in self._served]
        start, end = self._n_rows, self._n_rows + n
        if not self._tables or end > len(self._tables[0]):
            more = max(end, self._capacity, 2 * start) - start
            spare = [x.new_empty(more, x.shape[1]) for x in made]
            old = [table[:start] for table in self._tables]
            pairs = zip(old, spare, strict=True) if old else [(x,) for x in spare]
            self._tables = [torch.cat(pair) for pair in pairs]
        for table, x in zip(self._tables, made, strict=True):
            table[start:end] = x
        self._n_rows = end


def _captured(
    model: nn.Module,
    layer: AttentionLayer,
    tokens: Tensor,
    positions: list[int],
    types: TokenTypes | None = None,
) -> tuple[Tensor, bool]:
    """Head outputs at the positions, and whether only these were computed."""
    capture = capture_attention(model, [layer.layer], positions=positions, at="heads", stop=True)
    with torch.inference_mode(), capture, ExitStack() as stack:
        if types is not None:
            stack.enter_context(types.serving(capture, tokens, fill=torch.nan))
        model(tokens, use_cache=False)
    return capture[layer.layer], capture.narrow


def _traced(model: nn.Module, module: nn.Module, tokens: Tensor) -> TokenTypes:
    """See which modules run before the attention module, and which of its own get its input."""
    owner = Owner()
    before: list[nn.Module] = []
    served: list[nn.Module] = []
    inputs: list[Tensor] = []
    inside: list[nn.Module] = []

    def attend(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not owner.here():
            return forward(*args, **kwargs)
        inputs.append(_input(args, kwargs))
        forward(*args, **kwargs)
        raise _Enough

    def lead(part: nn.Module) -> Callable[..., Any]:
        def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            fits = [isinstance(x, Tensor) and x.shape[:2] == tokens.shape for x in (*args, output)]
            if owner.here() and not inputs and fits == [True, True] and not kwargs:
                before.append(part)
            return output

        return around

    def project(part: nn.Module) -> Callable[..., Any]:
        def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not owner.here() or inside or not inputs or not args or args[0] is not inputs[0]:
                return forward(*args, **kwargs)
            inside.append(part)  # what it calls with the same input is served with it
            try:
                output = forward(*args, **kwargs)
            finally:
                inside.clear()
            if isinstance(output, Tensor) and output.shape[:2] == tokens.shape:
                served.append(part)
            return output

        return around

    own = {id(part) for part in module.modules()}
    with torch.inference_mode(), ExitStack() as stack:
        stack.callback(owner.leave)
        for part in model.modules():
            if id(part) not in own and not any(True for _ in part.children()):
                wrap_method(part, lead(part), stack)
        for part in module.modules():
            if part is not module:
                wrap_method(part, project(part), stack)
        wrap_method(module, attend, stack)
        try:
            model(tokens, use_cache=False)
        except _Enough:
            queries = queries_of(module)
            return TokenTypes(model, module, before, [x for x in served if x is not queries])
    raise NotServed("the attention module did not run")


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments of an attention module."""
    found = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    assert isinstance(found, Tensor)
    return found


def _part_of(inputs: Tensor, args: tuple[Any, ...]) -> slice | None:
    """Which positions of the inputs a child was given, if it was given some of them."""
    x: Any = args[0] if args else None
    if x is inputs:
        return slice(0, inputs.shape[1])
    if not isinstance(x, Tensor) or x.device.type != "cpu":  # only a CPU works in slices
        return None
    start, rest = divmod(x.data_ptr() - inputs.data_ptr(), inputs.stride(1) * inputs.itemsize)
    if x.stride() != inputs.stride() or rest or not 0 <= start <= inputs.shape[1] - x.shape[1]:
        return None
    return slice(start, start + x.shape[1])


def _is_repeated(x: Any, tokens: Tensor) -> bool:
    """Whether x are the tokens themselves, or has the same at all positions."""
    if not isinstance(x, Tensor) or x.shape[:2] != tokens.shape or tokens.shape[1] == 1:
        return False
    return x.stride(1) == 0 if x.ndim == 3 else x.data_ptr() == tokens.data_ptr()


def _same(got: Tensor, expected: Tensor) -> bool:
    exact = expected.dtype in (torch.float32, torch.float64)
    scale = expected.square().mean().sqrt()
    return bool((got - expected).abs().max() <= (_EXACT if exact else _ROUNDED) * scale)
