"""What applies a rule to weights: settings, the plain update, faster runners, state and its saving.

settings, ownership    what a group of weights may be told, and who may be trained, checked
entries, saved         state as torch has it, and its way to and from state dicts
prepare, reader        who takes part in a step, with which gradient
finite                 no NaN or infinity in any gradient
plain, noise           what one update means

text, stages           that meaning as a list of operations, cut into kernels
arena, parts           many tensors in one buffer
residence, blocks      who lives in which arena, and one step of an arena
eager                  kernels without a compiler
native, source         kernels for a CPU, as C++
cuda, build            kernels for CUDA, by torch's compiler
kernels                how compiled ones are made in the background and kept
"""

from descend.optim.engine.plain import step_plain
from descend.optim.engine.settings import GroupSettings
from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["GroupSettings", "TensorUpdate", "step_plain"]
