"""What experiments are described with, in files named like LBANN's."""
