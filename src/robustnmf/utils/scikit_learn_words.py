"""Words of scikit-learn's NMF that have no place here: an error says what to write instead."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_START = "init=(codes, components) is a start, and fixed_components= holds components that are known"
_BATCHES = "partial_fit learns from one batch, of any size, at each call"

WORDS = {
    "beta_loss": "method= or loss= says what is minimised: method='l2' is 'frobenius', and noise='poisson' the robust "
    "relative of 'kullback-leibler'; there is no 'itakura-saito'",
    "shuffle": "coordinates are updated in order; leave it out",
    "regularization": "alpha_W= and alpha_H= say which factors are penalised",
    "alpha": "alpha_W= and alpha_H= are the weights of the penalties",
    "W": _START,
    "H": _START,
    "update_H": "fixed_components= holds components that are known",
    "batch_size": _BATCHES,
    "max_no_improvement": "tol= says when a fit ends",
    "fresh_restarts": _BATCHES,
    "fresh_restarts_max_iter": _BATCHES,
    "transform_max_iter": "max_iter= limits the iterations of transform too",
}
"""Arguments of scikit-learn's NMF, and what to do in place of each."""

NAMES = {
    ("solver", "cd"): "scikit-learn's 'cd', coordinate descent, is 'hals' here",
    ("solver", "mu"): "scikit-learn's 'mu' is 'multiplicative' here",
    ("init", "custom"): "pass the start itself: init=(codes, components)",
}
"""Values of its parameters, and what to write in place of each."""


def with_hints(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an argument of scikit-learn's NMF which it lacks is refused with advice."""

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name in WORDS:
                raise TypeError(f"{name}= of scikit-learn's NMF is no argument here: {WORDS[name]}.")
        return function(*args, **given)

    return checked
