"""Every model as one row: its parts, by name, and its source.

A row says what "auto" means for that model under each preset. Parts are found by name in the registries below; any
object with the right shape works as well.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Any

from robustnmf.algorithm.halfquadratic import Algorithm, run, run_as_published, take_start
from robustnmf.algorithm.initializers import (
    GivenStart,
    Initializer,
    MedianStart,
    PublishedStart,
    RandomStart,
    SingularStart,
)
from robustnmf.algorithm.parts import Parts as Parts
from robustnmf.algorithm.staged import Staged
from robustnmf.baselines.starts import HeavyNoiseStart, NearSeparableStart
from robustnmf.errors import IncompatibleError
from robustnmf.model.losses import (
    LOSSES,
    Absolute,
    Cauchy,
    Correntropy,
    Huber,
    Hypersurface,
    Loss,
    SampleNorm,
    Squared,
    Truncated,
    check_loss,
)
from robustnmf.model.noise import NOISES, Noise
from robustnmf.model.outliers import MADRule, MixtureRule, NoRejection, OutlierRule, SpreadRule, ThreeSigma
from robustnmf.model.penalties import Penalties
from robustnmf.model.scales import MAD, FirstScale, FixedScale, MixtureScale, Nagy, RootMeanSquare, ScaleRule
from robustnmf.model.spatial import MedianFilterRule, MRFRule
from robustnmf.solvers import (
    HALS,
    SOLVERS,
    Armijo,
    Multiplicative,
    Nesterov,
    SharedGram,
    Smoothing,
    Solver,
    SparseError,
    solvers_that,
)
from robustnmf.solvers.base import as_solver
from robustnmf.utils.scikit_learn_words import NAMES


@dataclass(frozen=True, slots=True)
class Model:
    """A row of `METHODS`: a model of the literature and its parts under each preset.

    Parameters
    ----------
    title : str
        What tables and reports call it.
    reference : str
        The publication.
    default : Parts
        What ``preset="default"`` runs.
    published : Parts
        What ``preset="published"`` runs.
    """

    title: str
    reference: str
    default: Parts
    published: Parts


def _rival(
    title: str,
    reference: str,
    loss: Loss,
    scale: ScaleRule,
    solver: Solver,
    outliers: OutlierRule = NoRejection(),  # noqa: B008  (immutable)
    penalty: float = 0.0,
    faster: Solver | None = None,
) -> Model:
    """Return a model that both presets run from a random start; the default may be faster, and stops later."""
    parts = Parts(loss, RandomStart(), scale, outliers, solver, Penalties(product=penalty))
    default = parts if faster is None else replace(parts, solver=faster)
    return Model(title, reference, default, replace(parts, algorithm=run_as_published))


def _one_shot(title: str, reference: str, init: Initializer) -> Model:
    """Return a model that does not alternate: its initialiser does all the work."""
    parts = Parts(Squared(), init, FixedScale(1.0), NoRejection(), HALS(), algorithm=take_start)
    return Model(title, reference, parts, parts)


_TPAMI = (
    "N. Guan, T. Liu, Y. Zhang, D. Tao, L. S. Davis, Truncated Cauchy Non-negative Matrix Factorization, "
    "IEEE Transactions on Pattern Analysis and Machine Intelligence, 2017."
)

_ICDM = "L. Du, X. Li, Y.-D. Shen, Robust Non-negative Matrix Factorization via Half-Quadratic Minimization, ICDM 2012."

_DEFAULT = Parts(Cauchy(), MedianStart(), MixtureScale(), MixtureRule(), SharedGram(), algorithm=Staged())
_PUBLISHED = Parts(Cauchy(), PublishedStart(), Nagy(), ThreeSigma(), Nesterov(), algorithm=run_as_published)

METHODS: Mapping[str, Model] = MappingProxyType(
    {
        "l2": _rival(
            "NMF",
            "D. D. Lee, H. S. Seung, Algorithms for Non-negative Matrix Factorization, NIPS 2001.",
            Squared(),
            FixedScale(1.0),
            Multiplicative(),
            faster=SharedGram(),
        ),
        "nenmf": _rival(
            "L2-NMF by Nesterov's method (NeNMF)",
            "N. Guan, D. Tao, Z. Luo, B. Yuan, NeNMF: An Optimal Gradient Method for Non-negative Matrix "
            "Factorization, IEEE Transactions on Signal Processing, 2012.",
            Squared(),
            FixedScale(1.0),
            Nesterov(),
        ),
        "hypersurface": _rival(
            "Hypersurface cost NMF (HCNMF)",
            "A. B. Hamza, D. J. Brady, Reconstruction of Reflectance Spectra Using Robust Non-negative Matrix "
            "Factorization, IEEE Transactions on Signal Processing, 2006.",
            Hypersurface(),
            FixedScale(1.0),  # the cost of the paper has no scale: it is quadratic below one unit of the data
            Armijo(),
        ),
        "l1": _rival(
            "L1-NMF",
            "E. Y. Lam, Non-negative Matrix Factorization for Images with Laplacian Noise, APCCAS 2008. The paper was "
            "not at hand: the updates are half-quadratic ones for the L1 norm, by coordinate descent.",
            Absolute(),
            FirstScale(),
            HALS(),
        ),
        "mahnmf": _rival(
            "Manhattan NMF (MahNMF)",
            "N. Guan, D. Tao, Z. Luo, J. Shawe-Taylor, MahNMF: Manhattan Non-negative Matrix Factorization, "
            "arXiv:1207.3438, 2012.",
            Absolute(),
            FirstScale(),
            Smoothing(),
        ),
        "rnmf-l1": _rival(
            "L1-regularised robust NMF (RNMF-L1)",
            "L. Zhang, Z. Chen, M. Zheng, X. He, Robust Non-negative Matrix Factorization, Frontiers of Electrical and "
            "Electronic Engineering in China, 2011. lambda is twice the scale.",
            Huber(),
            FirstScale(),
            SparseError(),
        ),
        "l21": _rival(
            "L2,1-NMF",
            "D. Kong, C. Ding, H. Huang, Robust Non-negative Matrix Factorization using L21-norm, CIKM 2011.",
            SampleNorm(),
            FirstScale(),
            Multiplicative(),
        ),
        "capped": _rival(
            "Robust capped norm NMF (RCNMF)",
            "H. Gao, F. Nie, W. Cai, H. Huang, Robust Capped Norm Non-negative Matrix Factorization, CIKM 2015. theta "
            "is three robust standard deviations above the median of the samples' residual norms.",
            SampleNorm(),
            FirstScale(),
            Multiplicative(),
            outliers=SpreadRule(),
        ),
        "cim": _rival("Correntropy NMF (CIM-NMF)", _ICDM, Correntropy(), RootMeanSquare(), Multiplicative()),
        # The cutoff is the median of the absolute residuals.
        "huber": _rival("Huber-NMF", _ICDM, Huber(), MAD(factor=1.0), Multiplicative()),
        "cauchy": Model(
            "CauchyNMF", _TPAMI, *(replace(parts, outliers=NoRejection()) for parts in (_DEFAULT, _PUBLISHED))
        ),
        "truncated-cauchy": Model("Truncated CauchyNMF", _TPAMI, _DEFAULT, _PUBLISHED),
        "heavy-noise": _one_shot(
            "NMF under heavy noise (TSVDNMF)",
            "C. Bhattacharyya, N. Goyal, R. Kannan, J. Pani, Non-negative Matrix Factorization under Heavy Noise, "
            "ICML 2016.",
            HeavyNoiseStart(),
        ),
        "rndl": _rival(
            "Robust non-negative dictionary learning (RNDL)",
            "Q. Pan, D. Kong, C. Ding, B. Luo, Robust Non-negative Dictionary Learning, AAAI 2014. The paper was not "
            "at hand: the update is the half-quadratic multiplicative one for the L1 norm with L1-penalised codes of "
            "normalised components.",
            Absolute(),
            FirstScale(),
            Multiplicative(),
            penalty=0.01,
        ),
        "near-separable": _one_shot(
            "Robust near-separable NMF",
            "N. Gillis, R. Luce, Robust Near-Separable Nonnegative Matrix Factorization Using Linear Optimization, "
            "Journal of Machine Learning Research, 2014.",
            NearSeparableStart(),
        ),
    }
)

INITIALIZERS: Mapping[str, Initializer] = MappingProxyType(
    {
        "random": RandomStart(),
        "median": MedianStart(),
        "published": PublishedStart(),
        "nndsvd": SingularStart(),
        "nndsvda": SingularStart(zeros="mean"),
        "nndsvdar": SingularStart(zeros="random"),
        "heavy-noise": HeavyNoiseStart(),
        "near-separable": NearSeparableStart(),
    }
)
SCALES: Mapping[str, ScaleRule] = MappingProxyType(
    {"nagy": Nagy(), "mad": MAD(), "rms": RootMeanSquare(), "first": FirstScale(), "mixture": MixtureScale()}
)
OUTLIERS: Mapping[str, OutlierRule] = MappingProxyType(
    {
        "none": NoRejection(),
        "three-sigma": ThreeSigma(),
        "three-sigma-feature": ThreeSigma(axis="feature"),
        "mad": MADRule(),
        "mad-feature": MADRule(axis="feature"),
        "spread": SpreadRule(),
        "mixture": MixtureRule(),
    }
)
SCHEDULES: Mapping[str, Algorithm] = MappingProxyType({"plain": run, "staged": Staged()})

SPATIAL: Mapping[str, Callable[..., OutlierRule]] = MappingProxyType(
    {"mrf": MRFRule, "median-filter": MedianFilterRule}
)
"""Outlier rules that need the shape of an image."""


def resolve(
    method: str,
    preset: str,
    *,
    loss: Any = "auto",
    init: Any = "auto",
    scale: Any = "auto",
    outliers: Any = "auto",
    solver: Any = "auto",
    schedule: Any = "auto",
    image_shape: Any = None,
    noise: Any = "auto",
    penalised: bool = False,
    fixed: bool = False,
) -> Parts:
    """Return the parts of a model, with those the user named or passed in place of the preset's.

    A number for `scale` is the paper's gamma, a number for `outliers` its sigma: entries beyond gamma * sqrt(sigma)
    are cut. `penalised` and `fixed` say that factors will be penalised and components held, which not all parts can do.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be one of {_names(METHODS)}; got {method!r}.")
    if preset not in ("default", "published"):
        raise ValueError(f"preset must be 'default' or 'published'; got {preset!r}.")
    model = METHODS[method]
    parts = model.default if preset == "default" else model.published
    if parts.algorithm is take_start:
        _refuse_for_one_shot(method, loss=loss, init=init, schedule=schedule)
    schedules = SCHEDULES if preset == "default" else {**SCHEDULES, "plain": run_as_published}
    parts = replace(
        parts,
        loss=_loss(loss, parts.loss),
        init=_part("init", _start(init), INITIALIZERS, parts.init, callable),
        solver=_part("solver", solver, SOLVERS, parts.solver, _is_solver),
        algorithm=_part("schedule", schedule, schedules, parts.algorithm, callable),
        scale=_scale(scale, parts.scale),
    )
    parts = _with_outliers(_with_noise(parts, method, noise), outliers, image_shape)
    _check_fit_together(parts, method, outliers)
    _check_extras(parts, method, penalised, fixed)
    return parts


def _refuse_for_one_shot(method: str, **given: Any) -> None:
    """Refuse parts of the alternation for a model that has none."""
    for name, value in given.items():
        if not isinstance(value, str) or value != "auto":
            words = "The start is all there is of method" if name == "init" else "Method"
            does = "" if name == "init" else " does not iterate"
            raise IncompatibleError(f"{words} {method!r}{does}: {name} must be 'auto'; got {value!r}.")


def _start(given: Any) -> Any:
    """Return a start; a pair of arrays is codes and components."""
    is_pair = isinstance(given, tuple) and len(given) == 2 and all(hasattr(factor, "shape") for factor in given)
    return GivenStart(*given) if is_pair else given


def _loss(given: Any, auto: Loss) -> Loss:
    """Return a loss; one of the user's own must be one."""
    loss: Loss = _part("loss", given, LOSSES, auto, lambda part: hasattr(part, "rho") and hasattr(part, "weight"))
    if not isinstance(given, str):
        check_loss(loss)
    return loss


def _scale(given: Any, auto: ScaleRule) -> ScaleRule:
    """Return a scale rule; a number is a fixed scale."""
    if _is_number(given):
        return FixedScale(float(given))
    rule: ScaleRule = _part("scale", given, SCALES, auto, callable, number="gamma")
    return rule


def _with_outliers(parts: Parts, given: Any, image_shape: Any) -> Parts:
    """Return the parts with an outlier rule; a number truncates the loss instead."""
    if _is_number(given):
        return replace(parts, loss=Truncated(parts.loss, float(given)), outliers=NoRejection())
    if isinstance(given, str) and given in SPATIAL:
        if image_shape is None:
            raise ValueError(f"outliers={given!r} looks at whole images: pass image_shape=(rows, columns).")
        shape = tuple(image_shape) if isinstance(image_shape, Iterable) else image_shape
        return replace(parts, outliers=SPATIAL[given](shape))
    known = {**OUTLIERS, **SPATIAL}
    return replace(parts, outliers=_part("outliers", given, known, parts.outliers, callable, number="sigma"))


def _with_noise(parts: Parts, method: str, given: Any) -> Parts:
    """Return the parts with a noise model; "auto" is that of the schedule."""
    if isinstance(given, str) and given == "auto":
        return parts
    if not isinstance(parts.algorithm, Staged):
        raise IncompatibleError(
            f"noise={given!r} needs schedule='staged', which judges entries by their noise; this fit of method "
            f"{method!r} has another. Leave noise='auto'."
        )
    if given is not None:
        given = _part("noise", given, NOISES, Noise(), lambda part: isinstance(part, Noise))
    return replace(parts, algorithm=replace(parts.algorithm, noise=given))


def _check_fit_together(parts: Parts, method: str, outliers: Any) -> None:
    """Refuse parts that look at samples as a whole together with those that look at entries."""
    if parts.loss.group != "sample":
        return
    if isinstance(parts.algorithm, Staged):
        raise IncompatibleError(f"Method {method!r} weighs whole samples, schedule='staged' entries: use 'plain'.")
    if hasattr(parts.outliers, "mask"):
        raise IncompatibleError(f"Method {method!r} weighs whole samples; outliers={outliers!r} looks at their pixels.")


def _check_extras(parts: Parts, method: str, penalised: bool, fixed: bool) -> None:
    """Refuse losses, penalties and known components that a part would ignore."""
    if parts.algorithm is take_start and (penalised or fixed):
        raise IncompatibleError(
            f"Method {method!r} does not iterate: it has neither penalties (alpha_W, alpha_H) nor fixed_components."
        )
    solver = parts.method.solver
    if fixed and not solver.keeps_fixed:
        raise IncompatibleError(
            f"solver {parts.solver} improves all components at once; with fixed_components use "
            f"{solvers_that('keeps_fixed')}."
        )
    has_penalties = bool(parts.penalties) or penalised
    if not solver.accepts(parts.loss) or (has_penalties and not solver.solves_least_squares):
        adjective = "penalised " if has_penalties else ""
        raise IncompatibleError(
            f"solver {parts.solver} cannot lower the {adjective}loss {parts.loss} of method {method!r}. Solvers that "
            f"serve every loss are {solvers_that('solves_least_squares')}."
        )


def _part(
    kind: str,
    given: Any,
    registry: Mapping[str, Any],
    auto: Any,
    fits: Callable[[Any], bool],
    number: str | None = None,
) -> Any:
    """Return the part that a name or an object stands for."""
    if isinstance(given, str):
        if given == "auto":
            return auto
        if given in registry:
            return registry[given]
    elif fits(given) and not isinstance(given, type):
        return given
    accepted = _names({"auto": auto} | dict(registry)) + (f", a number (the paper's {number})" if number else "")
    accepted += ", two arrays (codes, components)" if kind == "init" else ""
    hint = NAMES.get((kind, given)) if isinstance(given, str) else None
    advice = "" if hint is None else f" {hint[0].upper()}{hint[1:]}."
    where = f"robustnmf.{_MODULES[kind]}"
    raise ValueError(f"{kind} must be one of {accepted} or an object like those of {where}; got {given!r}.{advice}")


_MODULES = {
    "loss": "model.losses",
    "init": "algorithm.initializers",
    "scale": "model.scales",
    "outliers": "model.outliers",
    "solver": "solvers",
    "schedule": "algorithm.staged",
    "noise": "model.noise",
}


def _is_solver(part: Any) -> bool:
    return isinstance(as_solver(part), Solver)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _names(registry: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in registry)
