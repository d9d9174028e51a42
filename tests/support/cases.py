"""Cases of a law that `make test` leaves to `make test-thorough`, which CI runs as well.

    @pytest.mark.parametrize("n_processes", [3, *thorough(2, 5)])

`make test` keeps the cases that differ most. A test that holds its law once more, in another way or
at length, has the mark `thorough` itself.
"""

from typing import Any

import pytest


def thorough(*cases: Any) -> list[Any]:
    """Each case of one parameter, marked."""
    return [pytest.param(case, marks=pytest.mark.thorough) for case in cases]
