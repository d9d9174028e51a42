"""Prompts with right answers, next to those whose loss is measured: dictionary and repeat."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from llmprobe.base.transfers import as_float64, upload
from llmprobe.capture.losses import last_logits
from llmprobe.probes.prompts import Prompts, make_prompts
from llmprobe.probes.request import Prepared

TASKS = ("dictionary", "repeat")


@dataclass(frozen=True)
class Task:
    """Prompts of one length that ask for something that stands in them."""

    prompts: Prompts
    length: int

    def answers(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """What the model puts first at each target: (prompts, targets)."""
        n_targets = self._targets([0]).shape[1]
        return last_logits(model, tokens, n_targets).argmax(-1)

    def score(self, answers: Tensor, indices: Sequence[int]) -> Tensor:
        """Share of right tokens of each prompt: (prompts,)."""
        right = answers == upload(self._targets(indices), answers.device)
        return as_float64(right).mean(1)

    def _targets(self, indices: Sequence[int]) -> Tensor:
        targets = self.prompts.targets(indices, self.length)
        assert targets is not None, "these prompts ask something"
        return targets


def make_tasks(
    ready: Prepared, kinds: Sequence[str] = TASKS, *, seed: int
) -> tuple[dict[str, Task], list[str]]:
    """The tasks that a model can be asked at the longest length, and why others are left out."""
    loaded, longest = ready.loaded, max(ready.lengths)
    # Rows of the embedding beyond the tokenizer are padding that no training has touched.
    vocab_size = min(loaded.vocab_size, len(loaded.tokenizer or range(loaded.vocab_size)))
    tasks, notes = {}, []
    for kind in kinds:
        try:
            prompts = make_prompts(
                kind,
                n_prompts=ready.plan.n_prompts,
                lengths=[longest],
                seed=seed,
                tokenizer=loaded.tokenizer,
                vocab_size=vocab_size,
                bos_token_id=loaded.bos_token_id if ready.prompts.n_head else None,
            )
        except ValueError as error:
            notes.append(f"{kind} prompts are left out: {error}")
        else:
            tasks[kind] = Task(prompts, longest)
    return tasks, notes
