"""Configurations of the soak test: data, weights, parameters and engine, each a function of one integer.

Most choices are ordinary, so that fits come about; each can be extreme, so that all pairs of extremes come about.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustnmf import METHODS
from robustnmf.algorithm.halfquadratic import take_start
from robustnmf.methods import INITIALIZERS, OUTLIERS, SCALES, SOLVERS

# Solvers that serve every loss, and so all methods that alternate.
COMMON_SOLVERS = ["auto", "hals", "shared-gram", "nesterov", "multiplicative"]
ALTERNATING = [name for name, row in METHODS.items() if row.default.algorithm is not take_start]
# Single precision ends at 3e38.
LARGEST_SINGLE = 1e38
# What takes milliseconds for each small step gets little data and few iterations.
SLOW_ENGINES = ("torch", "dask")


@dataclass(frozen=True)
class Configuration:
    """What is fitted, how, and what is asked of the fit."""

    seed: int
    X: Any
    weights: Any = None
    uncertainties: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    engine: str = "numpy"
    block_entries: int | None = None
    """Entries of a block, if data is to be cut into several."""
    claims: frozenset[str] = frozenset()
    """What is tried beside what always is: "deterministic", "unit", "order"."""
    follow_ups: tuple[str, ...] = ()
    is_wrong: bool = False
    """Whether the data must be refused."""
    said: dict[str, str] = field(default_factory=dict)
    """The choices that the arrays do not show."""

    @property
    def rank(self) -> int:
        return int(self.parameters["n_components"])

    @property
    def dtype(self) -> Any:
        """That of the fit."""
        return np.dtype(np.float32 if self.X.dtype == np.float32 else np.float64)

    @property
    def observed(self) -> Any:
        with np.errstate(invalid="ignore"):
            seen = ~np.isnan(self.X)
        return seen if self.weights is None else seen & (self.weights > 0)

    @property
    def is_ordinary(self) -> bool:
        """Whether nobody would call this extreme: then a refusal because of the data is to be looked at."""
        values = np.asarray(self.X, dtype=float)[self.observed]
        positive = values[values > 0]
        if self.is_wrong or self.X.dtype == np.float32 or not positive.size:
            return False
        moderate = 1e-6 < positive.min() and positive.max() < 1e6 * positive.min() and positive.max() < 1e6
        return bool(moderate and not any("extreme" in word for word in self.said.values()))

    def __str__(self) -> str:
        options = {name: _short(value) for name, value in self.parameters.items()}
        words = [f"{name}={value}" for name, value in options.items()]
        words += [f"{name}: {what}" for name, what in self.said.items()]
        cut = f"/{self.block_entries}" if self.block_entries else ""
        asked = ", ".join([*sorted(self.claims), *self.follow_ups])
        return f"X{self.X.shape} {self.X.dtype} {self.engine}{cut} | {', '.join(words)} | {asked}"


def _short(value: Any) -> str:
    return f"array{value.shape}" if isinstance(value, np.ndarray) else repr(value)


class Draw:
    """A generator with the few kinds of choices that are needed here."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[int(self.rng.integers(len(choices)))]

    def weighted(self, choices: dict[Any, float]) -> Any:
        shares = np.array(list(choices.values()), dtype=float)
        return list(choices)[int(self.rng.choice(len(choices), p=shares / shares.sum()))]

    def magnitude(self, low: float, high: float, shape: Any = None) -> Any:
        """Return powers of ten, uniform between the exponents."""
        return 10.0 ** self.rng.uniform(low, high, shape)


# --- Data -------------------------------------------------------------------------------------------------------------


def low_rank(draw: Draw, n: int, m: int, noise: float = 0.02) -> Any:
    rank = int(draw.rng.integers(1, min(n, m, 6) + 1))
    product = draw.rng.random((n, rank)) @ draw.rng.random((rank, m))
    return product + noise * draw.rng.random((n, m))


def spread(draw: Draw, n: int, m: int, share: float, fill: float) -> Any:
    """Keep so much of the data, at least one entry."""
    X = low_rank(draw, n, m)
    gone = draw.rng.random(X.shape) >= share
    gone[draw.rng.integers(n), draw.rng.integers(m)] = False
    X[gone] = fill
    return X


def gross_errors(draw: Draw, n: int, m: int) -> Any:
    X = low_rank(draw, n, m)
    X[draw.rng.random(X.shape) < draw.one([0.02, 0.1, 0.3, 0.5])] = draw.magnitude(0, 12)
    return X


def one_positive(draw: Draw, n: int, m: int) -> Any:
    X = np.zeros((n, m))
    X[draw.rng.integers(n), draw.rng.integers(m)] = draw.one([1.0, 1e-3, 1e6])
    return X


def duplicated(draw: Draw, n: int, m: int) -> Any:
    X = low_rank(draw, n, m, draw.one([0.0, 0.02]))
    rows, columns = draw.rng.integers(0, max(1, n // 3), n), draw.rng.integers(0, max(1, m // 2), m)
    return X[rows][:, columns] if draw.chance(0.5) else X[rows]


def empty_lines(draw: Draw, n: int, m: int) -> Any:
    X = low_rank(draw, n, m)
    fill = draw.one([0.0, np.nan])
    X[draw.rng.random(n) < draw.one([0.0, 0.2, 0.7])] = fill
    X[:, draw.rng.random(m) < draw.one([0.0, 0.2, 0.7])] = fill
    X[draw.rng.integers(n), draw.rng.integers(m)] = 0.7
    return X


# Of a draw, samples and features: the data.
KINDS = {
    "low rank": lambda d, n, m: low_rank(d, n, m, d.one([0.001, 0.02, 0.3])),
    "exact": lambda d, n, m: low_rank(d, n, m, 0.0),
    "constant": lambda d, n, m: np.full((n, m), d.one([1.0, 1.0, 3e-5, 7e4])),
    "zeros": lambda d, n, m: np.zeros((n, m)),
    "one positive": one_positive,
    "97 % missing": lambda d, n, m: spread(d, n, m, 0.03, np.nan),
    "99.9 % zeros": lambda d, n, m: spread(d, n, m, 0.001, 0.0),
    "half zeros": lambda d, n, m: spread(d, n, m, 0.5, 0.0),
    "counts": lambda d, n, m: d.rng.poisson(d.one([0.1, 2.0, 30.0]) * low_rank(d, n, m)).astype(float),
    "heavy tails": lambda d, n, m: low_rank(d, n, m) * np.abs(d.rng.standard_cauchy((n, m))),
    "gross errors": gross_errors,
    "binary": lambda d, n, m: (d.rng.random((n, m)) < d.one([0.1, 0.5])).astype(float),
    "duplicated": duplicated,
    "empty lines": empty_lines,
    "extreme units of columns": lambda d, n, m: low_rank(d, n, m) * d.magnitude(-12, 12, m),
    "extreme ranges of rows": lambda d, n, m: low_rank(d, n, m) * d.magnitude(-12, 12, (n, 1)),
    "extreme, every magnitude": lambda d, n, m: d.magnitude(-30, 30, (n, m)),
    "extreme, largest": low_rank,
    "extreme, smallest": low_rank,
    "extreme, denormal": low_rank,
    "extreme, largest once": lambda d, n, m: np.where(np.eye(n, m) * (np.arange(m) == 0), 1e300, low_rank(d, n, m)),
}
SHARES = dict.fromkeys(KINDS, 1.0) | {"low rank": 5.0, "gross errors": 3.0}
# Levels near the ends of the range of numbers, in double and in single precision.
ENDS = {"extreme, largest": (1e300, 1e35), "extreme, smallest": (1e-300, 1e-35), "extreme, denormal": (1e-318, 1e-43)}


def shape_of(draw: Draw, engine: str) -> tuple[int, int]:
    if engine in SLOW_ENGINES:
        return int(draw.rng.integers(2, 13)), int(draw.rng.integers(1, 11))
    n, m = int(draw.rng.integers(2, 61)), int(draw.rng.integers(1, 41))
    if draw.chance(0.4):
        n, m = int(draw.rng.integers(2, 15)), int(draw.rng.integers(1, 12))
    return (4 * n, 2 * m) if draw.chance(0.02) else (n, m)


def gaps(draw: Draw, X: Any) -> str:
    """Set entries to NaN; say which."""
    what = draw.weighted({"none": 7, "some": 1.5, "half": 0.7, "a row": 0.4, "a column": 0.4, "a block": 0.4})
    n, m = X.shape
    if what in ("some", "half"):
        X[draw.rng.random(X.shape) < (0.1 if what == "some" else 0.5)] = np.nan
    elif what == "a row":
        X[draw.rng.integers(n)] = np.nan
    elif what == "a column":
        X[:, draw.rng.integers(m)] = np.nan
    elif what == "a block":
        X[: n // 2, : m // 2] = np.nan
    return what


def cast(draw: Draw, X: Any, said: dict[str, str]) -> Any:
    """Return the data in a dtype that can hold it."""
    kind = draw.weighted({"float64": 6, "float32": 2.5, "int": 1.5})
    if kind == "int" and "extreme" not in said["data"] and not np.isnan(X).any():
        dtype = draw.one(["uint8", "int16", "int32", "int64", "uint64"])
        return np.clip(10 * X, 0, min(np.iinfo(dtype).max, 2**60)).astype(dtype)
    X = X * ENDS.get(said["data"], (1.0, 1.0))[kind == "float32"]
    return np.minimum(X, LARGEST_SINGLE).astype(np.float32) if kind == "float32" else X


def laid_out(draw: Draw, X: Any, said: dict[str, str]) -> Any:
    said["layout"] = draw.weighted({"C": 6, "F": 1, "strided": 1, "read-only": 1, "reversed": 0.5})
    if said["layout"] == "F":
        X = np.asfortranarray(X)
    if said["layout"] == "strided":
        X = np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]
    if said["layout"] == "reversed":
        X = np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1]
    if said["layout"] == "read-only":
        X = X.copy()
        X.setflags(write=False)
    return X


def weights_of(draw: Draw, X: Any, said: dict[str, str]) -> Any:
    said["weights"] = draw.weighted({"none": 7, "0/1": 0.8, "random": 1.2, "many zeros": 0.5, "extreme": 0.5})
    rng, shape = draw.rng, X.shape
    if said["weights"] == "none":
        return None
    if said["weights"] == "0/1":
        return (rng.random(shape) < 0.8).astype(draw.one([float, int, bool]))
    if said["weights"] == "many zeros":
        return rng.random(shape) * (rng.random(shape) < 0.1)
    if said["weights"] == "extreme":
        return draw.magnitude(-30, 30, shape) if draw.chance(0.5) else rng.random(shape) * draw.magnitude(-30, 30)
    return rng.random(shape)


def uncertainties_of(draw: Draw, X: Any, said: dict[str, str]) -> Any:
    kinds = {"none": 8, "random": 0.8, "of features": 0.6, "extreme": 0.6, "extreme of features": 0.4}
    said["uncertainties"] = draw.weighted(kinds)
    rng, shape = draw.rng, X.shape
    if said["uncertainties"] == "none":
        return None
    if said["uncertainties"] == "random":
        return 0.01 + 0.05 * rng.random(shape)
    if said["uncertainties"] == "of features":
        return np.tile(draw.magnitude(-3, 3, shape[1]), (shape[0], 1))
    width = draw.one([12, 30, 140])
    if said["uncertainties"] == "extreme":
        return draw.magnitude(-width, width, shape)
    return np.tile(draw.magnitude(-width, width, shape[1]), (shape[0], 1))


def spoil(draw: Draw, X: Any, weights: Any, said: dict[str, str]) -> None:
    """Let entries without weight hold what no data can be: they have no influence."""
    if weights is not None and X.dtype.kind == "f" and X.flags.writeable and draw.chance(0.3):
        said["without weight"] = str(held := draw.one([np.nan, np.inf, -np.inf, -1.0, 1e38]))
        X[np.asarray(weights) == 0] = held


def make_wrong(draw: Draw, X: Any, said: dict[str, str]) -> None:
    said["wrong"] = str(held := draw.one([np.inf, -np.inf, -1.0, -1e-30]))
    X[draw.rng.integers(X.shape[0]), draw.rng.integers(X.shape[1])] = held


# --- Parameters -------------------------------------------------------------------------------------------------------


def auto_or(draw: Draw, probability: float, names: Any) -> Any:
    return draw.one(names) if draw.chance(probability) else "auto"


def scale_of(draw: Draw, level: float, said: dict[str, str]) -> Any:
    if draw.chance(0.6):
        return "auto"
    if draw.chance(0.5):
        return draw.one(SCALES)
    if draw.chance(0.3):
        said["scale"] = "extreme"
        return float(draw.one([draw.magnitude(-12, 12) * level or 1.0, 1e-300, 1e300]))
    return float(level * draw.magnitude(-2, 1))


def outliers_of(draw: Draw, m: int, said: dict[str, str]) -> dict[str, Any]:
    if draw.chance(0.6):
        return {}
    if draw.chance(0.3):
        cap = draw.one([0.5, 4.0, 25.0, 1e-12, 1e12])
        said["cap"] = "ordinary" if 0.1 < cap < 100 else "extreme"
        return {"outliers": cap}
    if draw.chance(0.2):
        width = draw.one([k for k in range(1, m + 1) if m % k == 0])
        return {"outliers": draw.one(["mrf", "median-filter"]), "image_shape": (m // width, width)}
    return {"outliers": draw.one(OUTLIERS)}


def penalties_of(draw: Draw, said: dict[str, str]) -> dict[str, Any]:
    if draw.chance(0.8):
        return {}
    width = draw.weighted({(-4.0, 0.0): 3, (-12.0, 12.0): 2})
    if width[1] > 0:
        said["penalties"] = "extreme"
    found: dict[str, Any] = {"l1_ratio": draw.one([0.0, 0.5, 1.0])}
    found["alpha_W"] = draw.one([0.0, float(draw.magnitude(*width))])
    if draw.chance(0.5) or found["alpha_W"] == 0:
        found["alpha_H"] = float(draw.magnitude(*width))
    return found


def known_components(draw: Draw, m: int, rank: int, said: dict[str, str]) -> dict[str, Any]:
    if draw.chance(0.93):
        return {}
    known = draw.rng.random((int(draw.rng.integers(1, rank + 1)), m))
    if draw.chance(0.3):
        said["known"] = "extreme"
        known *= draw.magnitude(-30, 30)
    if draw.chance(0.3):
        known[:, draw.rng.random(m) < 0.5] = 0.0
    return {"fixed_components": known}


def parameters_of(draw: Draw, X: Any, observed: Any, engine: str, said: dict[str, str]) -> dict[str, Any]:
    n, m = X.shape
    most = min(n, m)
    rank = int(draw.rng.integers(1, (most if draw.chance(0.15) else min(most, 4)) + 1))
    methods = dict.fromkeys(METHODS, 1.0) | {"truncated-cauchy": 6.0, "near-separable": 0.15}
    values = np.asarray(X, dtype=float)[observed]
    level = float(np.median(values[values > 0])) if (values > 0).any() else 1.0
    parameters = {
        "n_components": rank,
        "method": draw.weighted(methods),
        "preset": draw.weighted({"default": 3, "published": 1}),
        "init": auto_or(draw, 0.25, INITIALIZERS if draw.chance(0.1) else ["random", "median", "published"]),
        "scale": scale_of(draw, level, said),
        "solver": auto_or(draw, 0.4, COMMON_SOLVERS if draw.chance(0.7) else SOLVERS),
        "schedule": auto_or(draw, 0.4, ["plain", "plain", "staged"]),
        "max_iter": int((6 if engine in SLOW_ENGINES else 60) ** draw.rng.random()),
        "tol": draw.one([0.0, 1e-12, 1e-6, 1e-4, 1e-4, 1e-2, 1.0]),
        "random_state": int(draw.rng.integers(1000)),
    }
    return parameters | outliers_of(draw, m, said) | penalties_of(draw, said) | known_components(draw, m, rank, said)


# --- The whole --------------------------------------------------------------------------------------------------------

FOLLOW_UPS = {
    "clean": 0.3,
    "mask": 0.2,
    "scores": 0.2,
    "partial_fit": 0.12,
    "save": 0.12,
    "resume": 0.06,
    "ranks": 0.004,
}
ENGINES = {"numpy": 7.0, "reference": 1.2, "torch": 0.7, "stream": 0.9, "dask": 0.03}


def configuration(seed: int) -> Configuration:
    """Return the configuration of a number."""
    draw = Draw(seed)
    return well_posed(draw, seed) if draw.chance(0.06) else any_configuration(draw, seed)


def any_configuration(draw: Draw, seed: int) -> Configuration:
    said, engine = {"data": draw.weighted(SHARES)}, draw.weighted(ENGINES)
    X = KINDS[said["data"]](draw, *shape_of(draw, engine))
    said["gaps"] = gaps(draw, X)
    X = laid_out(draw, cast(draw, X, said), said)
    weights = weights_of(draw, X, said)
    uncertainties = uncertainties_of(draw, X, said)
    is_wrong = weights is uncertainties is None and X.dtype.kind == "f" and X.flags.writeable and draw.chance(0.01)
    if is_wrong:
        make_wrong(draw, X, said)
    else:
        spoil(draw, X, weights, said)
    claims = {name for name, share in (("deterministic", 0.33), ("unit", 0.25)) if draw.chance(share)}
    sketch = Configuration(seed, X, weights, uncertainties)
    return Configuration(
        seed,
        X,
        weights,
        uncertainties,
        parameters=parameters_of(draw, X, sketch.observed, engine, said),
        engine=engine,
        block_entries=X.size // draw.one([2, 3, 5]) + 1 if draw.chance(0.15) else None,
        claims=frozenset(claims),
        follow_ups=tuple(name for name, share in FOLLOW_UPS.items() if draw.chance(share)),
        is_wrong=is_wrong,
        said=said,
    )


def well_posed(draw: Draw, seed: int) -> Configuration:
    """Return data for which the order of samples does not matter: noisy, with many more entries than the factors."""
    n, m = int(draw.rng.integers(10, 21)), int(draw.rng.integers(10, 21))
    rank = int(draw.rng.integers(1, 3))
    X = draw.rng.random((n, rank)) @ draw.rng.random((rank, m)) + draw.one([0.02, 0.3]) * draw.rng.random((n, m))
    X[draw.rng.random(X.shape) < draw.one([0.0, 0.1])] = draw.one([0.0, 8.0, 1e4])
    X[draw.rng.random(X.shape) < draw.one([0.0, 0.0, 0.2])] = np.nan
    weights = draw.rng.uniform(0.3, 1, X.shape) if draw.chance(0.3) else None
    parameters = {
        "n_components": rank,
        "method": draw.one(ALTERNATING),
        "solver": draw.one(COMMON_SOLVERS),
        "schedule": "plain",
        "max_iter": 3,
        "tol": 0.0,
        "random_state": 0,
    }
    engine = draw.weighted({"numpy": 6, "reference": 3, "torch": 0.5})
    said = {"data": "well posed"}
    return Configuration(seed, X, weights, None, parameters, engine, claims=frozenset({"order"}), said=said)
