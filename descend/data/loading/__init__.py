"""From a data set to the batches of a run: which samples, read by which process, and handed on in which order."""
