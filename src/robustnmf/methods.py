"""Every model as one row: its parts, by name, and its source.

A row says what "auto" means for that model under each preset. Parts are found by name in the registries below; any
object with the right shape works as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal

from robustnmf.errors import IncompatibleError
from robustnmf.halfquadratic import Method
from robustnmf.initializers import Initializer, MedianStart, PublishedStart, RandomStart
from robustnmf.losses import Cauchy, Loss, TruncatedCauchy
from robustnmf.outliers import MADRule, NoRejection, OutlierRule, ThreeSigma
from robustnmf.scales import MAD, FixedScale, Nagy, ScaleRule
from robustnmf.solvers import HALS, Nesterov, Solver

Preset = Literal["default", "published"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model is made of."""

    loss: Loss
    init: Initializer
    scale: ScaleRule
    outliers: OutlierRule
    solver: Solver

    @property
    def method(self) -> Method:
        """The parts that Algorithm 2 uses."""
        return Method(self.loss, self.scale, self.outliers, self.solver)


@dataclass(frozen=True, slots=True)
class Model:
    """A row of `METHODS`: a model of the literature and its parts under each preset."""

    title: str
    reference: str
    default: Parts
    published: Parts


_TPAMI = (
    "N. Guan, T. Liu, Y. Zhang, D. Tao, L. S. Davis, Truncated Cauchy Non-negative Matrix Factorization, "
    "IEEE Transactions on Pattern Analysis and Machine Intelligence, 2017."
)

# Passes of Nagy's iteration beyond four digits buy nothing: the scale moves more than that until the end.
_DEFAULT = Parts(Cauchy(), MedianStart(), Nagy(tol=1e-4), MADRule(), HALS())
_PUBLISHED = Parts(Cauchy(), PublishedStart(), Nagy(), ThreeSigma(), Nesterov())

METHODS: Mapping[str, Model] = MappingProxyType(
    {
        "truncated-cauchy": Model("Truncated CauchyNMF", _TPAMI, _DEFAULT, _PUBLISHED),
        "cauchy": Model(
            "CauchyNMF",
            _TPAMI,
            replace(_DEFAULT, outliers=NoRejection()),
            replace(_PUBLISHED, outliers=NoRejection()),
        ),
    }
)

INITIALIZERS: Mapping[str, Initializer] = MappingProxyType(
    {"random": RandomStart(), "median": MedianStart(), "published": PublishedStart()}
)
SCALES: Mapping[str, ScaleRule] = MappingProxyType({"nagy": Nagy(), "mad": MAD()})
OUTLIERS: Mapping[str, OutlierRule] = MappingProxyType(
    {
        "none": NoRejection(),
        "three-sigma": ThreeSigma(),
        "three-sigma-feature": ThreeSigma(axis="feature"),
        "mad": MADRule(),
        "mad-feature": MADRule(axis="feature"),
    }
)
SOLVERS: Mapping[str, Solver] = MappingProxyType({"nesterov": Nesterov(), "hals": HALS()})


def resolve(
    method: str, preset: str, *, init: Any = "auto", scale: Any = "auto", outliers: Any = "auto", solver: Any = "auto"
) -> Parts:
    """Return the parts of a model, with those the user named or passed in place of the preset's.

    A number for `scale` is the paper's gamma, a number for `outliers` its sigma: entries beyond gamma * sqrt(sigma)
    are cut.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be one of {_names(METHODS)}; got {method!r}.")
    if preset not in ("default", "published"):
        raise ValueError(f"preset must be 'default' or 'published'; got {preset!r}.")
    model = METHODS[method]
    parts = model.default if preset == "default" else model.published
    parts = replace(
        parts,
        init=_part("init", init, INITIALIZERS, parts.init, callable),
        solver=_part("solver", solver, SOLVERS, parts.solver, lambda part: hasattr(part, "solve")),
    )
    if _is_number(scale):
        parts = replace(parts, scale=FixedScale(float(scale)))
    else:
        parts = replace(parts, scale=_part("scale", scale, SCALES, parts.scale, callable, number="gamma"))
    if _is_number(outliers):
        if not isinstance(parts.loss, Cauchy):
            raise IncompatibleError(f"A number for outliers truncates the Cauchy loss; method is {method!r}.")
        return replace(parts, loss=TruncatedCauchy(float(outliers)), outliers=NoRejection())
    return replace(parts, outliers=_part("outliers", outliers, OUTLIERS, parts.outliers, callable, number="sigma"))


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
    accepted = f"'auto', {_names(registry)}" + (f", a number (the paper's {number})" if number else "")
    raise ValueError(
        f"{kind} must be one of {accepted} or an object like those of robustnmf.{_MODULES[kind]}; got {given!r}."
    )


_MODULES = {"init": "initializers", "scale": "scales", "outliers": "outliers", "solver": "solvers"}


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _names(registry: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in registry)
