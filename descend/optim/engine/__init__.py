"""Applies a rule to parameters: group options, the reference update, faster runners, optimizer state, saving.

settings, parameter_checks   options of a parameter group; parameters that can be trained, followed from step to step
state, state_dict            state as torch presents it; state dicts
step_inputs, gradient_scan   parameters that a step updates; their gradients, by address
finite                       the finite check of gradients
plain, noise                 the reference update of one tensor
evaluation                   exchange of the parameters for their averages, and back

arena, arena_layout          many parameters in one buffer
segments                     the pieces of it that one call of the interpreter updates
aliases                      parameters that must stay at their address
arena_manager                assigns parameters to arenas and selects the runner of each
blocks, launch               one step of an arena, by the interpreter, or by compiled kernels
matrices, device_matrices    rules with means over rows and columns: compiled kernels update their tensors in place
stacked                      rules of whole tensors: those of one shape as a stack
ways                         which way the update of a tensor goes, by its rule

The kernels themselves are made in `descend/optim/compiler/`.
"""

from descend.optim.engine.plain import step_plain
from descend.optim.engine.settings import GroupSettings
from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["GroupSettings", "TensorUpdate", "step_plain"]
