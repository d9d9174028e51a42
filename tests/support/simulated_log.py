"""What happens on the simulated device while it is watched: work that is queued, and waits."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)  # one of several is found by being the same
class Log:
    """What happened on the device while it was watched."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """(kind, what): kind is `wait` or `queue`; of waits `what` names the reason."""

    @property
    def waits(self) -> Counter[str]:
        return Counter(what for kind, what in self.events if kind == "wait")

    @property
    def n_waits(self) -> int:
        return sum(self.waits.values())


_logs: list[Log] = []


@contextmanager
def watching() -> Iterator[Log]:
    """Keep what happens on the device."""
    log = Log()
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.remove(log)


def note(kind: str, what: str) -> None:
    for log in _logs:
        log.events.append((kind, what))
