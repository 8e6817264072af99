"""Types of the names that can be passed for parameters, so that a type checker finds a typo.

Registries say what the names stand for; `tests/test_types.py` compares both.
"""

from typing import Literal

MethodName = Literal[
    "l2",
    "nenmf",
    "hypersurface",
    "l1",
    "mahnmf",
    "rnmf-l1",
    "l21",
    "capped",
    "cim",
    "huber",
    "cauchy",
    "truncated-cauchy",
    "heavy-noise",
    "rndl",
    "near-separable",
]
PresetName = Literal["default", "published"]
LossName = Literal["squared", "absolute", "sample-norm", "huber", "hypersurface", "correntropy", "cauchy"]
InitName = Literal["random", "median", "published", "nndsvd", "nndsvda", "nndsvdar", "heavy-noise", "near-separable"]
ScaleName = Literal["nagy", "mad", "rms", "first", "mixture"]
OutliersName = Literal[
    "none",
    "three-sigma",
    "three-sigma-feature",
    "mad",
    "mad-feature",
    "spread",
    "mixture",
    "mrf",
    "median-filter",
]
SolverName = Literal[
    "hals", "shared-gram", "nesterov", "multiplicative", "armijo", "smoothing", "weighted-median", "sparse-error"
]
ScheduleName = Literal["plain", "staged"]
NoiseName = Literal["auto", "constant", "poisson", "proportional"]
FeatureScalingName = Literal["auto", "robust"]
SampleScalingName = Literal["total"]
ZerosName = Literal["data", "missing"]
RepeatedValuesName = Literal["auto", "data"]
EngineName = Literal["auto", "numpy", "sparse", "torch", "stream", "dask"]
Auto = Literal["auto"]
