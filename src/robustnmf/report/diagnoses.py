"""Diagnoses of a fit: verdicts in words, each with its reason and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.halfquadratic import take_start
from robustnmf.algorithm.staged import Staged
from robustnmf.model.scales import FixedScale
from robustnmf.report.facts import Facts
from robustnmf.report.summary import percent

Verdict = Literal["good", "doubt", "bad", "open"]

# An unconverged fit whose objective changes by up to so many times the tolerance is nearly there.
NEARLY = 10.0
# The scale is looked at over so many last iterations; its range there, relative to itself, is small or large.
LAST = 5
STEADY, UNSTEADY = 0.01, 0.1
# A scale below this part of a typical entry is none: the fit is exact.
COLLAPSED = 1e-6
# Share of outliers that is suspicious, and one that leaves no majority.
MANY, HALF = 0.3, 0.5
# Share of the variation that is explained well, and hardly at all.
WELL, HARDLY = 0.5, 0.2
# A feature or sample that lost half of its entries, and so much more than the others, is wrong as a whole.
MOST_OF_IT, BEYOND_THE_REST, NEARLY_ALL = 0.5, 0.25, 0.9
# A component that gives less of the reconstruction is not used; the even share of each, with many, is small too.
NEGLIGIBLE, OF_EVEN_SHARE = 1e-3, 0.05
# Components with a larger cosine are the same.
SAME_DIRECTION = 0.99
# How much more than noise the leading direction of the residual holds, as a factor and as a share of the energy.
STRUCTURED, STRUCTURED_SHARE = 1.5, 0.01
# The same, beyond doubt.
VERY_STRUCTURED, VERY_STRUCTURED_SHARE = 4.0, 0.05
# Names in a sentence, at most.
NAMED = 5


@dataclass(frozen=True)
class Diagnosis:
    """One finding."""

    name: str
    """Identifier, for tests and links."""
    verdict: Verdict
    finding: str
    reason: str
    advice: str = ""
    """What to do; empty if nothing."""


def diagnose(
    facts: Facts, feature_names: Sequence[str], sample_names: Sequence[str], *, images: bool
) -> list[Diagnosis]:
    """Return all findings; of `images` some features, those at the margins, may well be zero."""
    return [
        convergence(facts.model),
        explanation(facts),
        scale(facts),
        outlier_share(facts),
        whole_lines(facts, feature_names, sample_names, images=images),
        rank_too_high(facts),
        rank_too_low(facts),
    ]


def convergence(model: Any) -> Diagnosis:
    """Whether the fit came to rest."""
    n_iter, tol = model.n_iter_, model.tol
    if model.parts_.algorithm is take_start:
        return Diagnosis("convergence", "open", "The method does not iterate", "There is nothing to converge.")
    if model.converged_:
        reason = f"Its stopping rule was met after {n_iter} iterations."
        return Diagnosis("convergence", "good", "The fit converged", reason)
    changes = model.history_["relative_change"]
    known = changes[np.isfinite(changes)]
    last = float(known[-1]) if known.size else np.inf
    # A schedule that need not make all iterations says how many it makes at least.
    fewest_iter = getattr(model.parts_.algorithm, "fewest_iter", lambda max_iter: max_iter)
    if n_iter < fewest_iter(model.max_iter):
        reason = f"It made {n_iter} iterations; the relative change was {last:.1e}, tol is {tol:.1e}."
        advice = "If that was not on purpose, fit again without the callback."
        return Diagnosis("convergence", "doubt", "The fit was ended by the callback", reason, advice)
    reason = f"After {n_iter} iterations the relative change of the objective was {last:.1e}; tol is {tol:.1e}."
    advice = f"Fit again with max_iter={2 * model.max_iter} or more"
    if last <= NEARLY * tol:
        advice += ", or raise tol if the result is good enough."
        return Diagnosis("convergence", "doubt", "The fit nearly converged", reason, advice)
    return Diagnosis("convergence", "bad", "The fit did not converge", reason, f"{advice}.")


def explanation(facts: Facts) -> Diagnosis:
    """Whether the components say anything of the data."""
    share = facts.explained
    finding = f"The components explain {percent(max(share, 0.0))} of what varies"
    reason = "That is over the entries that are kept, and beside the mean of each feature, which explains nothing."
    if share >= WELL:
        return Diagnosis("explanation", "good", finding, reason)
    advice = (
        "Either the features have little in common, or so much is wrong that errors and data could not be told apart: "
        "do not rely on the outliers then. Remove what is known to be wrong (NaN), or try another rank."
    )
    return Diagnosis("explanation", "bad" if share < HARDLY else "doubt", finding, reason, advice)


def scale(facts: Facts) -> Diagnosis:
    """Whether the scale of the noise settled."""
    model = facts.model
    final = float(model.scale_)
    if isinstance(model.parts_.scale, FixedScale):
        reason = f"It is {final:.4g} by the model or by its parameter, not estimated."
        return Diagnosis("scale", "open", "The scale is fixed", reason)
    some = facts.data.X[:: max(1, len(facts.data.X) // 1000)]
    typical = float(np.median(some[some > 0])) if (some > 0).any() else 0.0
    if final <= COLLAPSED * typical:
        reason = f"It is {final:.2g}, the typical entry {typical:.2g}: the fit is all but exact."
        advice = "For data without noise that is as it should be. Otherwise lower the rank, or fix the scale."
        return Diagnosis("scale", "doubt", "The scale has collapsed", reason, advice)
    values = model.history_["scale"][-LAST:]
    if len(values) < 2:
        return Diagnosis("scale", "open", "Whether the scale settled cannot be told", "There were too few iterations.")
    is_staged = isinstance(model.parts_.algorithm, Staged)
    if is_staged and model.converged_ and abs(float(values[-1]) / final - 1) > STEADY:
        reason = (
            f"It is {final:.4g} there and {values[-1]:.4g} at the end, where entries held out of the fit were "
            "predicted less well: the fit had begun to follow the noise."
        )
        return Diagnosis("scale", "good", "The scale is that of the best iteration", reason)
    spread = float(np.ptp(values)) / final
    reason = f"It varied by {percent(spread)} over the last {len(values)} iterations and is {final:.4g}."
    if spread <= STEADY:
        return Diagnosis("scale", "good", "The scale is stable", reason)
    advice = "Which entries are outliers depends on it: fit again with a larger max_iter, or fix it with scale=…"
    if spread <= UNSTEADY:
        return Diagnosis("scale", "doubt", "The scale still moved a little", reason, advice)
    return Diagnosis("scale", "bad", "The scale had not settled", reason, advice)


def outlier_share(facts: Facts) -> Diagnosis:
    """Whether so many outliers can be."""
    model, share = facts.model, facts.outlier_share
    finding = f"{percent(share)} of the entries are outliers"
    if not model.outliers_.any():
        if np.isfinite(model.thresholds_).any() or hasattr(model.parts_.outliers, "mask"):
            return Diagnosis("outliers", "good", "There are no outliers", "No entry lies beyond the cut.")
        reason = "The model only weighs entries, or found no errors to cut off."
        return Diagnosis("outliers", "open", "Nothing is cut", reason)
    if share <= MANY:
        reason = "Clean data has up to about 1\u00a0%, and this method bears far more."
        return Diagnosis("outliers", "good", finding, reason)
    reason = "Either that many are wrong, or the model does not suit the data and good entries are cut."
    advice = (
        "Look at the map below: scattered entries speak for errors, blocks for structure that is missing from the "
        "model. Then try a higher rank, features of a similar size, or a wider cut."
    )
    if share <= HALF:
        return Diagnosis("outliers", "doubt", finding, reason, advice)
    return Diagnosis("outliers", "bad", f"{finding}: more than are kept", reason, advice)


def whole_lines(facts: Facts, feature_names: Sequence[str], sample_names: Sequence[str], *, images: bool) -> Diagnosis:
    """Whether there are features or samples of which nothing counts."""
    features, samples = facts.features, facts.samples
    limit = max(MOST_OF_IT, min(facts.outlier_share + BEYOND_THE_REST, NEARLY_ALL))
    found = [
        *_listed("feature", feature_names, features.cut >= limit, f"lost {percent(limit)} or more of the entries"),
        *_listed("sample", sample_names, samples.cut >= limit, f"lost {percent(limit)} or more of the entries"),
        *_listed("feature", feature_names, features.missing == 1, "never observed"),
        *_listed("sample", sample_names, samples.missing == 1, "without any observed entry"),
        *(f"component {k + 1} is about one feature only: {feature_names[j]}" for k, j in facts.soloists[:NAMED]),
        *([] if images else _listed("feature", feature_names, facts.zero_features, "zero throughout")),
    ]
    if not found:
        reason = f"None lost {percent(limit)} or more of its entries."
        return Diagnosis("lines", "good", "Every feature and sample counts like the others", reason)
    advice = (
        "Is a sensor dead, or in another unit than the others? Does a sample belong to the data? Correct or drop them: "
        "what is said of them rests on little."
    )
    return Diagnosis("lines", "doubt", "Some features or samples are unlike the others", _sentence(found), advice)


def rank_too_high(facts: Facts) -> Diagnosis:
    """Whether there are components that are not needed."""
    rank = len(facts.contributions)
    unused = np.flatnonzero(facts.contributions < min(NEGLIGIBLE, OF_EVEN_SHARE / rank))
    cosine, (first, second) = facts.largest_cosines
    weak = min(facts.structure.weak, rank - 1)
    reasons = []
    if unused.size:
        reasons.append(f"{_count(unused.size, 'component')} ({some_names(unused + 1)}) give next to nothing")
    if cosine > SAME_DIRECTION:
        reasons.append(f"components {first + 1} and {second + 1} are nearly the same (cosine {cosine:.3f})")
    if weak:
        reasons.append(f"{weak} of the {rank} directions of the fit are no stronger than noise")
    if not reasons:
        reason = (
            f"Every component is used, no two are alike (largest cosine {cosine:.2f}), all are stronger than noise."
        )
        return Diagnosis("rank-high", "good", "The rank is not too high", reason)
    fewer = rank - max(unused.size, weak, int(cosine > SAME_DIRECTION))
    advice = (
        f"Try n_components={max(fewer, 1)}. If features differ widely in size, divide each by its typical value first: "
        "the small ones drown in the noise of the large."
    )
    return Diagnosis("rank-high", "doubt", "The rank may be too high", _sentence(reasons), advice)


def rank_too_low(facts: Facts) -> Diagnosis:
    """Whether the residuals have structure that more components could explain."""
    found = facts.structure
    if found.noise == 0:
        return Diagnosis("rank-low", "good", "The rank is not too low", "The model leaves nothing to explain.")
    factor, more = found.share / found.noise, found.share - found.noise
    reason = (
        f"The leading direction of the residuals, outliers aside, holds {percent(found.share)} of their energy; "
        f"noise of the same size would hold {percent(found.noise)}."
    )
    if factor <= STRUCTURED or more <= STRUCTURED_SHARE:
        return Diagnosis("rank-low", "good", "The rank is not too low", reason)
    if not facts.model.converged_ or found.weak:  # it could be more with the components that there are
        advice = "First let it converge; if that does not help, try more components."
        if facts.model.converged_:
            advice = "Try another start (random_state, or init='random')."
        return Diagnosis("rank-low", "doubt", "The fit does not explain all that it could", reason, advice)
    advice = f"Try a higher n_components than {len(facts.contributions)}"
    if factor > VERY_STRUCTURED and more > VERY_STRUCTURED_SHARE:
        return Diagnosis("rank-low", "bad", "The rank is too low", reason, f"{advice}.")
    advice += ", if the relative error is too large for your purpose."
    return Diagnosis("rank-low", "doubt", "More components could explain more", reason, advice)


def _listed(what: str, names: Sequence[str], chosen: NDArray[Any], words: str) -> Iterator[str]:
    """Yield how many features or samples something holds for, and which; nothing if for none."""
    places = np.flatnonzero(chosen)
    if places.size:
        yield f"{_count(places.size, what)} {words}: {some_names([names[place] for place in places[: NAMED + 1]])}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def some_names(names: Any) -> str:
    """Return a few names for a sentence."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:NAMED]) + (", …" if len(texts) > NAMED else "")


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."
