"""A model in a notebook: one small table, with nothing but the standard library."""

import inspect
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from robustnmf.data.sparse import is_sparse

# Longer values of parameters are cut off: arrays as a start, objects of the user's own.
LONGEST = 80


def summary_html(model: Any) -> str:
    """Return a compact HTML table of a model: parameters before the fit, what came of it afterwards.

    Parameters
    ----------
    model : RobustNMF
        An estimator, fitted or not.

    Returns
    -------
    str
        The table.
    """
    fitted = hasattr(model, "components_")
    rows = outcome(model) if fitted else {name: short(value) for name, value in changed(model).items()}
    # The colours are those of the notebook, light or dark.
    cell = "text-align: left; padding: .15em .8em .15em 0; border: 0; background: none; color: inherit;"
    lines = "".join(
        f'<tr style="background: none"><th scope="row" style="{cell} font-weight: normal; opacity: .75">{escape(name)}'
        f'</th><td style="{cell}">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    state = "" if fitted else " <small>(not fitted)</small>"
    return (
        f'<div class="robustnmf-summary"><strong>{escape(type(model).__name__)}</strong>{state}'
        f'<table style="border-collapse: collapse; margin: .3em 0; border: 0">{lines}</table></div>'
    )


def outcome(model: Any) -> Mapping[str, str]:
    """Return what came of a fit, in words."""
    # Both may have been deleted to make the file of the model smaller.
    complete = hasattr(model, "outliers_") and hasattr(model, "weights_")
    n_samples, share = model.n_samples_seen_, "not kept"
    if complete:
        # Observed entries are those with a weight, and the outliers themselves.
        n_samples = model.outliers_.shape[0]
        if is_sparse(model.outliers_):  # the weights of all entries would have to be computed
            share = f"{model.outliers_.nnz} entries"
        else:
            cut, kept = (int(np.count_nonzero(array)) for array in (model.outliers_, model.weights_))
            share = f"{percent(cut / max(cut + kept, 1))} of the observed entries"
    return {
        "data": f"{n_samples} samples × {model.n_features_in_} features",
        "method": f"{model.method}, preset {model.preset}",
        "components": str(model.n_components_),
        "outliers": share,
        "scale": f"{model.scale_:.4g}",
        "converged": f"{'yes' if model.converged_ else 'no'}, {model.n_iter_} iterations, {seconds(model):.2g} s",
    }


def changed(model: Any) -> Mapping[str, Any]:
    """Return the parameters that matter: the first few always, others where they are not the default."""
    signature = inspect.signature(type(model).__init__).parameters
    always = ("n_components", "method", "preset")
    return {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name in always or repr(value) != repr(signature[name].default)
    }


def seconds(model: Any) -> float:
    """Return how long the fit took."""
    return float(model.history_["seconds"][-1])


def percent(share: float) -> str:
    r"""Return a share in per cent.

    Examples
    --------
    >>> percent(0.0), percent(0.0004), percent(0.1234), percent(1.0)
    ('0\xa0%', '<\xa00.1\xa0%', '12.3\xa0%', '100\xa0%')
    """
    number = "<\u00a00.1" if 0 < share < 0.001 else f"{100 * share:.1f}".removesuffix(".0")
    return f"{number}\u00a0%"  # the sign does not begin a line


def short(value: Any) -> str:
    """Return a value as Python writes it, cut off where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
