"""Notes of single layers as one note that names the layers, for people to read.

    layer 0: heavy tails: slopes rest on ...
    layer 1: heavy tails: slopes rest on ...

become `layers 0 and 1: heavy tails: slopes rest on ...`. Results keep the single notes. Those of
older versions count `4 of 6 slopes`; such counts are added up.
"""

import re
from collections.abc import Iterable, Sequence

_OF_A_LAYER = re.compile(r"layer (\d+): (.+)", re.DOTALL)
_SHARE = re.compile(r"\b(\d+) of (\d+)\b")


def joined_notes(notes: Iterable[str]) -> list[str]:
    """The notes in their order; those that say the same of several layers are one."""
    found: dict[str, list[tuple[int, str]]] = {}
    for note in notes:
        match = _OF_A_LAYER.fullmatch(note)
        if match is None:
            found.setdefault(note, [])
        else:
            found.setdefault(_SHARE.sub("# of #", match[2]), []).append((int(match[1]), match[2]))
    return [_joined(layers) if layers else note for note, layers in found.items()]


def _joined(said: Sequence[tuple[int, str]]) -> str:
    """One note: its shares are added up over the layers."""
    layers, texts = zip(*said, strict=True)
    shares = [[(int(n), int(of)) for n, of in _SHARE.findall(text)] for text in texts]
    sums = iter([tuple(map(sum, zip(*one, strict=True))) for one in zip(*shares, strict=True)])
    text = _SHARE.sub(lambda _: "{} of {}".format(*next(sums)), texts[0])
    return f"layer{'s' * (len(layers) > 1)} {_listed(layers)}: {text}"


def _listed(numbers: Sequence[int]) -> str:
    """`0`, `0 and 1`, `0 to 5, 7 and 9`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    short = [
        word
        for run in runs
        for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))
    ]
    return " and ".join([", ".join(short[:-1]), short[-1]] if short[1:] else short)
