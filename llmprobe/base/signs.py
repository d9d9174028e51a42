"""Numbers as text, with one minus sign in tables, sentences and figures.

It is the one that matplotlib writes on axes. CSV and JSON keep the hyphen: programs read those.
"""

import re


def minus(text: str) -> str:
    """The text with a real minus sign before its numbers.

    A hyphen within a word stays, such as that of a model's name or of 1e-05.
    """
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "−", text)


def signed(value: float, form: str = "+.2f") -> str:
    """A number with its sign; what is rounded to zero has none."""
    text = f"{value:{form}}"
    return minus(text.lstrip("+-") if float(text) == 0 else text)
