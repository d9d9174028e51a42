"""Accuracy at several steps of a training, at some lengths: frames go in, Axes come out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from llmprobe.base.lengths import spread
from llmprobe.results.figures.accuracy import draw_band, legend_over, span, variants
from llmprobe.results.figures.style import COLUMN_WIDTH, styled_axes

_PANELS = 4


def draw_steps(
    frame: pd.DataFrame, *, longest: int, n_sets: Sequence[int], ax: Any = None
) -> NDArray[Any]:
    """Accuracy against training steps, a panel for each of some lengths beyond training.

    The frame is `SyntheticResult.step_frame()`; bands are 95 % intervals over seeds.
    """
    names = list(dict.fromkeys(frame.variant))
    beyond = sorted(n for n in set(frame.length) if n > longest) or sorted(set(frame.length))
    shown = spread(beyond, _PANELS)
    height = 2.1 + 0.1 * len(names)
    with styled_axes(
        ax, n_panels=len(shown), panels=True, width=2 * COLUMN_WIDTH, height=height
    ) as axes:
        for panel, length in zip(axes, shown, strict=True):
            at = frame[frame.length == length].assign(length=lambda part: part.step)
            for part, look in variants(at, names):
                draw_band(part, panel, scale=100, **look)
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(numticks=5))
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.set_ylim(-2, 102)
            panel.set_yticks(range(0, 101, 20))
            panel.set_title(f"{length} items")
            panel.set_xlabel("training steps")
        axes[0].set_ylabel(
            f"accuracy (%) on {span(n_sets)} sets,\n"
            f"mean over {span(frame.n_seeds)} seeds, 95 % band"
        )
        legend_over(axes, names)
    return np.asarray(axes)
