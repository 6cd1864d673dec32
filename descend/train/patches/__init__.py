"""What patches a module for training: reproducible dropout, batch norm groups and synchronized batch norm."""
