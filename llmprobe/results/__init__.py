"""Frozen numbers with their tables and figures. Nothing here needs torch."""
