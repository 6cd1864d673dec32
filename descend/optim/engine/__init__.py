"""Applies a rule to parameters: group options, the reference update, faster runners, optimizer state, saving.

settings, parameter_checks   options of a parameter group; which tensors can be trained
state_proxy, state_dict      state as torch presents it; state dicts
step_inputs, gradient_scan   parameters that a step updates, with their gradients
finite                       checks gradients for NaN and infinity
plain, noise                 the reference update of one tensor
evaluation                   exchange of the parameters for their averages, and back

arena, segments              many parameters in one buffer, and the pieces of it that one kernel call updates
pinned, aliases              parameters that must stay at their address
arena_manager                assigns parameters to arenas and selects the runner of each
blocks, native               one step of an arena, by the interpreter, or by CPU kernels
device_kernels               one step of an arena, by CUDA kernels
device_flag, late_check      the look at gradients on a GPU, whose outcome the host reads at the next step
matrices, matrix_arena       rules with means over rows and columns: their tensors are updated where they are
matrix_evaluation            the same by NumPy, where there is no kernel
device_matrices              the same by CUDA kernels
stacked                      rules of whole tensors: those of one shape as a stack
ways                         which way the update of a tensor goes, by its rule

The kernels themselves are made in `descend/optim/compiler/`.
"""

from descend.optim.engine.plain import step_plain
from descend.optim.engine.settings import GroupSettings
from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["GroupSettings", "TensorUpdate", "step_plain"]
