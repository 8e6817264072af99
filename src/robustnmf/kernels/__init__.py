"""Faster copies of reference functions, one folder per compiler, and what kernels know of a weighting."""
