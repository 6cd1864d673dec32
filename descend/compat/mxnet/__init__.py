"""MXNet's words, releases 1.9 and 2.0.

common       arguments of MXNet's base optimizer: rescaling, clipping, multipliers, weight decay by name
mxnet19      each optimizer of release 1.9: its arguments and defaults, as one of our rules
mxnet20      the same for release 2.0
schedulers   mxnet.lr_scheduler
gluon        gluon.Trainer: step, allreduce_grads, update, save_states
"""
