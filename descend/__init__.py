"""descend: trains neural networks by first-order descent at any batch size."""
