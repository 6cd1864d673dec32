"""What watches or saves a run."""
