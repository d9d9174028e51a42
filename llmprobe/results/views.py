"""What a result shows on a page and in a notebook, declared without a plotting library.

Each kind of result lists its views in `Result.views`; `results.report` draws them. A view names
columns of one of the result's frames:

    HeadMap   one number for each layer and head; a click chooses a head
    Lines     a number against length or dose, a line for each variant or for the chosen head

A view whose frame has no row, or no finite number, is left out.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A number against another one, with its 95 % CI."""

    title: str
    """The question that the chart answers."""
    y: str
    axis: str
    """What y is: statistic, unit and axis."""
    low: str = ""
    high: str = ""
    """Ends of the band around the line; none if empty."""
    band: str = "95 % CI"
    """What the band is."""
    by: str = ""
    """The column that tells lines apart; `result` puts several results into one chart. Empty for
    the curves of a chosen head."""
    x: str = "length"
    x_axis: str = "prompt length N (tokens)"
    log_x: bool = True
    log_y: bool = False
    percent: bool = False
    """Whether y is a share, shown in percent."""
    frame: str = "to_frame"
    """The result's method that gives the rows."""


@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """A number for each layer and head."""

    title: str
    value: str
    axis: str
    low: str = ""
    high: str = ""
    """Ends of its 95 % CI: cells whose CI holds 0 are marked."""
    diverging: bool = True
    """Whether 0 is the middle of the color scale."""
    frame: str = "to_frame"


View = Lines | HeadMap


class Viewed(Protocol):
    """A result, as far as a chart needs it: its views, and the frames that they name."""

    views: ClassVar[tuple[View, ...]]
