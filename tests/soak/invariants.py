"""What must hold of every configuration: a sound result or a clear refusal, and whatever is promised beside that."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from drawing import Configuration
from laboratory import Fit, Laboratory, Refusal, only_documented_warnings, refusal
from surroundings import BrokenError, unchanged

from robustnmf import load, select_rank
from robustnmf.algorithm import checkpoint
from robustnmf.algorithm.halfquadratic import run
from robustnmf.model.outliers import NoRejection
from robustnmf.model.scales import FixedScale
from robustnmf.solvers import LossSolver

# Numbers between which a change of unit rounds nothing.
SAFE = {np.dtype(np.float64): (1e-250, 1e250), np.dtype(np.float32): (1e-30, 1e30)}
FACTORS = tuple(2.0**power for power in (-200, -40, -3, 1, 40, 300))
# Part of itself by which an objective may rise, by rounding; and part of the entries that must agree, see promises.md.
MOST_RISE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-2}
SHARE_THAT_AGREES = 0.7
NUMBERS = ("components_", "weights_", "outliers_", "scale_", "objective_", "reconstruction_err_", "thresholds_")
MAY_BE_INFINITE = {"thresholds_", "relative_change"}
MAY_BE_NEGATIVE = {"objective_", "objective", "scores", "relative_change"}
COLUMNS = ("objective", "scale", "outlier_share", "relative_change")


def require(holds: Any, invariant: str, detail: str) -> None:
    if not holds:
        raise BrokenError(invariant, detail)


def numbers_of(fit: Fit) -> dict[str, Any]:
    """Return all that a fit says in numbers."""
    found = {name: np.asarray(getattr(fit.model, name)) for name in NUMBERS}
    return found | {"codes": fit.codes} | {f"history {name}": np.asarray(fit.model.history_[name]) for name in COLUMNS}


def is_sound(name: str, values: Any) -> bool:
    """Return whether numbers are finite and non-negative, as far as they should be."""
    name, values = name.removeprefix("history "), np.asarray(values)
    finite = ~np.isnan(values) if name in MAY_BE_INFINITE else np.isfinite(values)
    return bool(finite.all() and (name in MAY_BE_NEGATIVE or (values >= 0).all()))


def require_sound(numbers: dict[str, Any]) -> None:
    bad = [name for name, values in numbers.items() if not is_sound(name, values)]
    require(not bad, "finite", f"{', '.join(bad)}")


def require_same(invariant: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Require the same bits, NaN nowhere."""
    bad = [name for name, values in expected.items() if not np.array_equal(found[name], values)]
    require(not bad, invariant, f"{', '.join(bad)} differ")


# --- One fit ----------------------------------------------------------------------------------------------------------


def check_sound(case: Configuration, fit: Fit) -> None:
    """Results are finite, of the right shape and dtype, and say nothing of what is missing."""
    (n, m), rank = case.X.shape, case.rank
    found = numbers_of(fit)
    require_sound(found)
    shapes = {
        "components_": (rank, m),
        "weights_": (n, m),
        "codes": (n, rank),
        "outliers_": (n, m),
        "thresholds_": (m,),
    }
    for name, shape in shapes.items():
        require(found[name].shape == shape, "shape", f"{name} has {found[name].shape}, not {shape}")
        right = bool if name == "outliers_" else case.dtype
        require(found[name].dtype == right, "dtype", f"{name} has {found[name].dtype}, not {np.dtype(right)}")
    require(found["weights_"].max() <= 1, "range", "weights_ above 1")
    require(found["history outlier_share"].max() <= 1, "range", "outlier_share above 1")
    require(not found["outliers_"][~case.observed].any(), "missing", "outliers_ where nothing is observed")
    require(not found["weights_"][~case.observed].any(), "missing", "weights_ where nothing is observed")
    check_components(case, found["components_"])


def check_components(case: Configuration, components: Any) -> None:
    """Each has the maximum 1, or 0, without penalties; known ones are as they were given."""
    known = case.parameters.get("fixed_components")
    first = 0 if known is None else len(known)
    if known is not None:
        require(np.array_equal(components[:first], known.astype(components.dtype)), "known", "components_ are others")
    if not (case.parameters.get("alpha_W") or case.parameters.get("alpha_H")):
        largest = components[first:].max(axis=1)
        require(np.isin(largest, (0, 1)).all(), "range", f"components_ with maxima {largest}")


def is_monotone(case: Configuration, fit: Fit) -> bool:
    """Return whether the objective of a fit must not rise: scale and cut fixed, ordinary data."""
    parts = fit.model.parts_
    cut = not isinstance(parts.outliers, NoRejection)
    capped = isinstance(case.parameters.get("outliers"), float)
    return (
        parts.algorithm is run
        and isinstance(parts.scale, FixedScale)
        and not cut
        and not (capped and isinstance(parts.solver, LossSolver))
        and not any("extreme" in word for word in case.said.values())
    )


def check_objective(case: Configuration, fit: Fit) -> None:
    if is_monotone(case, fit):
        objective = fit.model.history_["objective"]
        rounding = 1e-12 if case.dtype == np.float64 else max(1e-4 * abs(objective[0]), 1e-10)
        rise = np.diff(objective, append=objective[-1]) - MOST_RISE[case.dtype] * np.abs(objective) - rounding
        worst = int(rise.argmax())
        require(rise[worst] <= 0, "objective never rises", f"{objective[worst : worst + 2]} after iteration {worst}")


# --- Several fits -----------------------------------------------------------------------------------------------------


def check_deterministic(case: Configuration, fit: Fit, lab: Laboratory) -> None:
    require_same("deterministic", numbers_of(lab.fit(case)), numbers_of(fit))


def factors(case: Configuration, scale: Any) -> list[float]:
    """Return powers of two by which data, uncertainties and a fixed scale can be multiplied exactly."""
    values = case.X[case.observed].astype(float)
    low, high = SAFE[case.dtype]
    extent = [values[values > 0]]
    if case.uncertainties is not None:
        extent.append(case.uncertainties[case.observed])
        low, high = max(low, 1e-140), min(high, 1e140)  # which is their own range
    elif isinstance(scale, FixedScale):
        extent.append(np.array([scale.value]))
    extent = np.concatenate(extent)
    with np.errstate(over="ignore"):
        fits = [low <= extent.min() * factor and extent.max() * factor <= high for factor in (1.0, *FACTORS)]
    return [factor for factor, possible in zip(FACTORS, fits[1:], strict=True) if possible and fits[0]]


def has_exact_unit(case: Configuration, lab: Laboratory) -> bool:
    """Return whether all that is in units of the data can be multiplied without another rounding.

    Penalties have units of their own; so have known components in units of the noise. Blocks of a stream are cut by
    bytes, so that integers would be cut otherwise.
    """
    penalised = case.parameters.get("alpha_W") or case.parameters.get("alpha_H")
    # Single precision does not hold squares of components of every magnitude in units of the noise.
    of_noise = case.uncertainties is not None and (
        case.dtype == np.float32
        or "fixed_components" in case.parameters
        or "extreme" in case.said.get("uncertainties", "")
    )
    cut_otherwise = lab.is_lazy and case.X.dtype.kind != "f"
    return not (penalised or of_noise or cut_otherwise) and bool((case.X[case.observed] > 0).any())


def check_unit(case: Configuration, fit: Fit, lab: Laboratory) -> None:
    """Data in another unit has the same components, and codes in that unit."""
    scale, in_noise = fit.model.parts_.scale, case.uncertainties is not None
    possible = factors(case, scale) if has_exact_unit(case, lab) else []
    if not possible:
        return
    factor = possible[case.seed % len(possible)]
    unit = 1.0 if in_noise else factor
    with np.errstate(over="ignore"):  # of what has no weight
        X = np.where(case.observed, case.X * case.dtype.type(factor), case.X).astype(case.dtype)
    other = replace(case, X=X, uncertainties=case.uncertainties * factor if in_noise else None)
    again = lab.fit(other, **({"scale": scale.value * unit} if isinstance(scale, FixedScale) else {}))
    found, expected = numbers_of(again), numbers_of(fit)
    names = ("components_", "outliers_", "weights_")
    wanted = {name: expected[name] for name in names} | {"scale_": expected["scale_"] * unit}
    require_same("unit", found, wanted)
    with np.errstate(over="ignore", under="ignore"):
        one, two = expected["codes"] * factor, found["codes"]
    numbers = (np.minimum(one, two) > SAFE[case.dtype][0]) & (np.maximum(one, two) < SAFE[case.dtype][1])
    require_same("unit", {"codes": two[numbers]}, {"codes": one[numbers]})


class GivenStart:
    """The same start in units of X, whatever the unit of the fit and the order of samples and features."""

    def __init__(self, case: Configuration, samples: Any, features: Any) -> None:
        (n, m), rng = case.X.shape, np.random.default_rng(case.seed)
        values = case.X[case.observed]
        self.largest = values.max()
        self.W = rng.random((m, case.rank))[features]
        self.H = (2 * np.median(values) / case.rank * rng.random((case.rank, n)))[:, samples]

    def __call__(self, V: Any, M: Any, rank: int, rng: Any) -> tuple[Any, Any]:
        unit = self.largest / V.max() if V.max() > 0 else 1.0
        return self.W.astype(V.dtype), (self.H / unit).astype(V.dtype)


def check_order(case: Configuration, fit: Fit, lab: Laboratory) -> None:
    """The order of samples and features does not matter for most entries; where two codes tie, rounding decides."""
    rng = np.random.default_rng(case.seed)
    rows, columns = (rng.permutation(size) for size in case.X.shape)
    same = [np.arange(size) for size in case.X.shape]
    weights = None if case.weights is None else case.weights[rows][:, columns]
    other = replace(case, X=case.X[rows][:, columns], weights=weights)
    one = lab.fit(case, init=GivenStart(case, *same))
    two = lab.fit(other, init=GivenStart(case, rows, columns))
    wanted = (one.codes @ one.model.components_)[rows][:, columns]
    difference = np.abs(two.codes @ two.model.components_ - wanted)
    share = np.mean(difference <= 1e-6 * max(wanted.max(), np.finfo(float).tiny))
    require(share >= SHARE_THAT_AGREES, "order", f"only {share:.0%} of the entries agree after a permutation")


CLAIMS: dict[str, Callable[[Configuration, Fit, Laboratory], None]] = {
    "deterministic": check_deterministic,
    "unit": check_unit,
    "order": check_order,
}

# --- What a fitted model does -----------------------------------------------------------------------------------------


def check_transform(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    again = np.asarray(fit.model.transform(**given))
    require(np.array_equal(again, fit.codes), "transform", "transform(X) is not what fit_transform(X) returned")


def check_clean(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    cleaned = np.asarray(fit.model.clean(**given))
    # Where nothing is observed of a sample or a feature, its factor is zero, and cleaned data is missing.
    unknown = ~np.asarray(fit.codes).any(axis=1)[:, None] | ~np.asarray(fit.model.components_).any(axis=0)
    require_sound({"clean": np.where(unknown & np.isnan(cleaned), 0, cleaned)})
    if "extreme" in (case.said.get("weights", "") + case.said.get("uncertainties", "")):
        return  # a weight may be so small beside others that it is zero, and its entry missing
    kept = case.observed & ~np.asarray(fit.model.outliers_)
    require(np.array_equal(cleaned[kept], case.X[kept].astype(cleaned.dtype)), "clean", "it changed entries that fit")


def check_mask(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    found = np.asarray(fit.model.outlier_mask(**given))
    require(np.array_equal(found, np.asarray(fit.model.outliers_)), "mask", "outlier_mask(X) is not outliers_")


def check_scores(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    scores = np.asarray(fit.model.score_samples(**given))
    require_sound({"scores": scores, "inverse_transform": fit.model.inverse_transform(fit.codes)})
    require(scores.shape == case.X.shape[:1], "shape", f"scores have {scores.shape}")


def check_save(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    path = lab.folder / "model"
    fit.model.save(path)
    same = load(path).set_params(engine=fit.model.engine)  # an object is not saved, and cuts data otherwise
    again = np.asarray(same.transform(**given))
    require(np.array_equal(again, fit.codes), "save", "a loaded model has other codes")
    cleaned = [np.asarray(model.clean(**given)) for model in (same, fit.model)]
    require(np.array_equal(*cleaned, equal_nan=True), "save", "a loaded model cleans otherwise")


def check_partial_fit(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    """A second batch, the first half again, of a stream that began with all of it."""
    model = lab.estimator(case.parameters)
    half = {name: None if array is None else array[: (len(case.X) + 1) // 2] for name, array in given.items()}
    for batch in (given, half):
        model.partial_fit(**batch)
        names = ("components_", "weights_", "outliers_", "scale_", "thresholds_")
        require_sound({f"{name}": np.asarray(getattr(model, name)) for name in names})
    require_sound({"codes": np.asarray(model.transform(**given))})


class Crash(BaseException):
    """An end from outside."""


def check_resume(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    """A fit that was ended half-way goes on to the same result."""
    half = fit.model.n_iter_ // 2

    def crash(iteration: Any) -> None:
        if iteration.n_iter == half:
            raise Crash

    folder = lab.folder / "checkpoint"
    defaults, share = checkpoint.Checkpoint.__init__.__defaults__, checkpoint.SHARE
    checkpoint.Checkpoint.__init__.__defaults__, checkpoint.SHARE = (1,), np.inf  # saved in each iteration
    try:
        with suppress(Crash):
            lab.fit(case, given, callback=crash, checkpoint=folder)
        resumed = lab.fit(case, given, checkpoint=folder)
    finally:
        checkpoint.Checkpoint.__init__.__defaults__, checkpoint.SHARE = defaults, share
    require_same("resume", numbers_of(resumed), numbers_of(fit))


def check_ranks(case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    ranks = range(1, min(3, *case.X.shape) + 1)
    options = {"n_splits": 2, "estimator": lab.estimator(case.parameters), "random_state": 0}
    found = select_rank(given["X"], ranks, weights=case.weights, uncertainties=case.uncertainties, **options)
    require(np.isfinite(found.mean).all(), "finite", f"scores of ranks {found.mean}")
    require(found.chosen in ranks, "range", f"chosen rank {found.chosen}")


FOLLOW_UPS: dict[str, Callable[[Configuration, Fit, Laboratory, dict[str, Any]], None]] = {
    "transform": check_transform,
    "clean": check_clean,
    "mask": check_mask,
    "scores": check_scores,
    "save": check_save,
    "partial_fit": check_partial_fit,
    "resume": check_resume,
    "ranks": check_ranks,
}
# Not every model can learn from batches, and a few entries cannot be split.
MAY_REFUSE = {"partial_fit", "ranks"}


# --- All of it --------------------------------------------------------------------------------------------------------


def examine(case: Configuration) -> Refusal | None:
    """Fit a configuration and check all that must hold; return how it was refused, if it was."""
    with TemporaryDirectory() as folder, Laboratory(case.engine, case.block_entries, Path(folder)).open() as lab:
        given = lab.given(case)
        with only_documented_warnings(), unchanged(given, case.parameters) as check:
            try:
                fit = lab.fit(case, given)
            except Exception as error:
                return refusal(error)
            check()
            require(not case.is_wrong, "wrong data is refused", "it was accepted")
            check_sound(case, fit)
            check_objective(case, fit)
            check_kept(case, fit)
            for name in ("transform", *case.follow_ups):
                follow_up(name, case, fit, lab, given)
            for name in sorted(case.claims):
                claim(name, case, fit, lab)
    return None


def check_kept(case: Configuration, fit: Fit) -> None:
    parameters = fit.model.get_params()
    changed = [name for name, value in case.parameters.items() if parameters[name] is not value]
    require(not changed, "unchanged", f"parameters {', '.join(changed)} of the estimator are others")


def follow_up(name: str, case: Configuration, fit: Fit, lab: Laboratory, given: dict[str, Any]) -> None:
    try:
        FOLLOW_UPS[name](case, fit, lab, given)
    except BrokenError as broken:
        raise BrokenError(broken.invariant, f"{broken.detail} (after {name})") from broken.__cause__
    except Exception as error:
        found = refusal(error)
        require(name in MAY_REFUSE, "refused after a fit", f"{name} says: {found.message[:120]}")


def claim(name: str, case: Configuration, fit: Fit, lab: Laboratory) -> None:
    try:
        CLAIMS[name](case, fit, lab)
    except BrokenError:
        raise
    except Exception as error:
        found = refusal(error)
        raise BrokenError(name, f"a fit that succeeded before is refused: {found.message[:120]}") from error
