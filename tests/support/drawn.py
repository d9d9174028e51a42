"""Figures as they look, without a file."""

from typing import Any

import numpy as np


def pixels(axes: Any) -> bytes:
    """What the figure of some Axes looks like: laid out and drawn once, where a file takes two."""
    figure = np.atleast_1d(axes).ravel()[0].get_figure(root=True)
    figure.canvas.draw()
    return bytes(figure.canvas.buffer_rgba())
