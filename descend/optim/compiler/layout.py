"""How the elements of an arena are divided, as kernels, the interpreter and the engine all assume.

tensor   blocks of BLOCK elements; the last block is padded, so every tensor begins at a block
unit     UNIT consecutive elements of one tensor (fewer at its end): what one thread updates at a time, and the span
         over which squares are summed before units are added up in order
"""

__all__ = ["BLOCK", "UNIT"]

BLOCK = 64  # elements; a block of float32 is four cache lines, and padding wastes half a block a tensor
UNIT = 2**14  # elements of one tensor that one thread updates at a time, and whose squares are summed together
