"""Text from files made safe to show: their names and notes may hold escape sequences."""


def visible(text: str) -> str:
    """The text with control characters written out, such as \\x1b; all else stays."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
