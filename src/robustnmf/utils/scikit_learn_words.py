"""Arguments that have no place here, as those of scikit-learn's NMF or typos: an error says what to write instead."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
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
    """Decorate a function so that an argument which it lacks is refused with advice.

    Parameters
    ----------
    function : callable
        A function without ``**arguments``.

    Returns
    -------
    callable
        The same function, which names the argument that was meant.

    Examples
    --------
    >>> with_hints(lambda max_iter=200: max_iter)(max_itr=10)
    Traceback (most recent call last):
    TypeError: <lambda>() has no argument 'max_itr'. Did you mean 'max_iter'?
    """
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in known:
                raise TypeError(_advice(function.__qualname__.removesuffix(".__init__"), name, known))
        return function(*args, **given)

    return checked


def _advice(function: str, name: str, known: list[str]) -> str:
    """Return what to write instead of an argument that a function does not have."""
    if name in WORDS:
        return f"{name}= of scikit-learn's NMF is no argument here: {WORDS[name]}."
    near = get_close_matches(name, known, n=1)
    meant = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(each for each in known if each != 'self')}."
    return f"{function}() has no argument {name!r}. {meant}"
