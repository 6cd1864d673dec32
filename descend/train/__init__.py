"""Training algorithms, stopping criteria, events, contexts and the trainer."""
