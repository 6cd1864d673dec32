"""The kernel compiler: from a rule's equations to one compiled loop over many tensors.

    Rule.direction ── trace ──► Trace ── partition ──► Kernel, Kernel, ...          one kernel for each norm or total
                     trace.py            partition.py     │
                                                          │
                     ┌────────────────────────────────────┼──────────────────────────────────┐
                     ▼                                    ▼                                  ▼
              codegen_cpp.py                       codegen_cuda.py                    interpreter.py
              C++, with kernel.h                   CUDA, with cuda_kernel.h           NumPy or torch
                     │ compile: g++, clang++              │ compile: nvrtc.py                │ no compiler
                     ▼                                    ▼                                  │
              native.py  .so                       cuda.py  .cubin                           │
                     │                                    │                                  │
                     └────────────── cache.py ────────────┘                                  │
                                        │ load                                               │
                                        ▼                                                    ▼
                     launch, by descend.optim.engine: launch.py, matrices.py, device_matrices.py, blocks.py

For rules with means over rows and columns `matrix_plan.py` takes the place of `partition.py`. Their C++ is written by
`codegen_matrix.py` (with matrix.h) and, for tensors of many small matrices, by `codegen_packs.py` (with packs.h), their
CUDA by `codegen_cuda_matrix.py` (with cuda_matrix.h).

A compiler runs in a process of its own while the interpreter makes the updates; `cache.KernelCompiler` starts it once a
run has lasted a second, and keeps the finished file under the hash of trace, precision, device, torch and our sources
(`cache.SOURCES`). All forms round alike on a CPU, so switching to the compiled kernel changes no bit. `layout` holds
the sizes that all of them assume.

The compiler takes from the engine only the meaning of an update (`engine.plain.update`).
"""
