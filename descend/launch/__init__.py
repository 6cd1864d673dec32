"""One file a scheduler: who am I, and the text of the job. No torch."""
