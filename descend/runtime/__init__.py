"""The execution context of a process: device, precision, seeds, the run directory."""
