"""What shows a run without carrying it out: layer table, graph and lineage pictures, estimates and forecasts."""
