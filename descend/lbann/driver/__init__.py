"""LBANN's driver, the program `lbann`: its options, its files and its words for what is missing, over descend's runs.

    descend-lbann --prototext=experiment.prototext --num_epochs=3
    python -m descend.lbann.driver --model=m.prototext --optimizer=o.prototext --reader=r.prototext

Experiments run as in LBANN, with one warning for each setting that is an error elsewhere; see
`descend.arguments.leniency`.
"""
