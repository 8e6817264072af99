"""Kernels for CUDA GPUs: Triton, CUDA and CUDA graphs."""
