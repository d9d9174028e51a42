"""Looking into a model: loading it, finding its attention, capturing outputs and rows."""
