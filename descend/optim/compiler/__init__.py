"""The kernel compiler: a rule is traced, partitioned into kernels, written as C++ or CUDA, compiled and cached."""
