"""How results are drawn: the style, and one module for each kind of result."""
