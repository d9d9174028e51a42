"""The tables of figures/README.md about encoders and quantized weights."""

from pathlib import Path

import numpy as np
from cells import interval, minus, rows, saved, table

from llmprobe.results.pairs import pair_frame
from llmprobe.results.slope_words import LABELS


@table
def encoder(root: Path) -> str:
    """MiniLM's heads by layer: labels and slopes."""
    frame = saved(root / "figures/minilm_heads").decay_frame()
    lines = []
    for layer in np.unique(frame.layer):
        some = frame[frame.layer == layer]
        counts = " | ".join(f"{(some.label == label).sum()}" for label in LABELS)
        slope = some.slope
        slopes = minus(f"{slope.min():+.2f} | {slope.median():+.2f} | {slope.max():+.2f}")
        lines.append(f"{layer} | {len(some)} | {counts} | {slopes}")
    return rows(f" layer| heads| {'| '.join(LABELS)}| steepest| median| highest", lines)


@table
def quantized(root: Path) -> str:
    """Slopes of SmolLM2's heads in float32, and how far int8 and int4 are from them."""
    exact, *others = (
        saved(root / f"figures/smollm2_{kind}").decay_frame()
        for kind in ("float32", "int8", "int4")
    )
    pairs = [pair_frame(exact, other).set_index(["layer", "head"]) for other in others]
    lines = []
    for layer in np.unique(exact.layer):
        cells = []
        for pair in (one.loc[layer] for one in pairs):
            size = pair.difference.abs()
            row = pair.loc[size.idxmax()]
            found = interval(row.difference, row.difference_low, row.difference_high, "+.3f")
            outside = ((pair.difference_low > 0) | (pair.difference_high < 0)).sum()
            cells.append(f"{size.median():.3f} | {found} | {outside}")
        slopes = exact[exact.layer == layer].slope
        spread = minus(f"{slopes.min():+.2f} to {slopes.max():+.2f}")
        lines.append(f"{layer} | {len(slopes)} | {spread} | {' | '.join(cells)}")
    head = " layer| heads| slopes in float32"
    for kind in ("int8", "int4"):
        head += f"| {kind}: median difference| largest [95 % CI]| CIs without 0"
    return rows(head, lines)
