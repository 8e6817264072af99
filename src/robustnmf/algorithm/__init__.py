"""HOW a fit runs: initial factors, Algorithm 2, the stages of the default, codes of samples, checkpoints."""
