"""A job in pieces: kept, resumed, shared out over processes, gathered."""
