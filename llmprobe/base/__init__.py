"""What knows nothing of attention: the machine, processes, seeds, files, lengths, statistics."""
