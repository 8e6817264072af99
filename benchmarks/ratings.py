"""Ratings of which most are missing: held-out error, time and memory beside alternating least squares (ALS).

Users, items and their tastes are simulated: popularity and activity are skewed, tastes are non-negative and of low
rank, and ratings are on a grid of half stars. A tenth is held out. Training ratings are clean, or a part of them is
wrong. ALS is that of Zhou et al. 2008 (a ridge by the number of ratings), on ratings less their mean, with and without
biases of users and items; its ridge, rank and biases are those that predict a tenth of the training ratings best. Ours
is the default, untuned, with the rank of the tastes.

Every fit has a process of its own, of which the time and the peak of memory are measured, less what the data takes.

    python benchmarks/ratings.py                # writes benchmarks/results/ratings.md
    python benchmarks/ratings.py --jobs 8       # so many fits at once, on a machine with 16 cores
    python benchmarks/ratings.py --scale 0.05   # so many users, items and ratings, prints
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numba import njit
from scipy import sparse

RESULTS = Path(__file__).parent / "results" / "ratings.md"
ERRORS = {
    "clean": "none",
    "random": "10 % of the ratings are drawn at random",
    "opposite": "10 % of the ratings are the opposite extreme",
    "shilling": "10 % of the users are fake: five stars for some items, half a star for the others",
}
RIDGES = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3)
N_THREADS = 2


@dataclass(frozen=True)
class Setting:
    """One set of ratings."""

    n_users: int = 100_000
    n_items: int = 10_000
    n_ratings: int = 1_000_000
    n_tastes: int = 5
    errors: str = "clean"
    seed: int = 0


@dataclass(frozen=True)
class Ratings:
    """Ratings of users for items, (k,) each."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    truth: np.ndarray
    """What would have been given without noise and errors."""
    is_wrong: np.ndarray
    is_test: np.ndarray
    shape: tuple

    def matrix(self, chosen, values=None):
        """Return chosen ratings, (k,) of bool, as a sparse matrix."""
        values = self.values if values is None else values
        return sparse.csr_array((values[chosen], (self.users[chosen], self.items[chosen])), shape=self.shape)


def draw(setting):
    """Return simulated ratings."""
    rng = np.random.default_rng(setting.seed)
    users, items = places(setting, rng)
    sizes = np.clip(rng.normal(1, 0.12, (setting.n_users, 1)), 0.5, None)
    tastes = sizes * rng.dirichlet(np.full(setting.n_tastes, 0.3), setting.n_users)
    quality = rng.normal(3.4, 0.5, (setting.n_items, 1))
    appeal = np.clip(quality + 1.2 * rng.normal(size=(setting.n_items, setting.n_tastes)), 0.2, None)
    truth = np.einsum("ij,ij->i", tastes[users], appeal[items])
    values = stars(truth + 0.5 * rng.normal(size=len(truth)))
    is_test = rng.random(len(users)) < 0.1
    # Of users and items without a rating nobody knows anything.
    known = [
        np.bincount(side[~is_test], minlength=n) > 0 for side, n in ((users, setting.n_users), (items, setting.n_items))
    ]
    keep = ~is_test | (known[0][users] & known[1][items])
    users, items, truth, values, is_test = (part[keep] for part in (users, items, truth, values, is_test))
    values, is_wrong = with_errors(values, users, items, is_test, setting, rng)
    keep = ~(is_test & is_wrong)  # nobody wants to know what fake users would like
    users, items, truth, values, is_test, is_wrong = (p[keep] for p in (users, items, truth, values, is_test, is_wrong))
    return Ratings(users, items, values, truth, is_wrong, is_test, (setting.n_users, setting.n_items))


def places(setting, rng):
    """Return who rates what, each pair once: some users are far more active, and some items more popular."""
    activity = np.cumsum(rng.lognormal(0, 1, setting.n_users))
    popularity = np.cumsum(rng.permutation((np.arange(setting.n_items) + 10.0) ** -0.9))
    pairs = np.empty(0, np.int64)
    while len(pairs) < setting.n_ratings:
        n = setting.n_ratings - len(pairs) + 1000
        users = np.searchsorted(activity, rng.random(n) * activity[-1])
        items = np.searchsorted(popularity, rng.random(n) * popularity[-1])
        pairs = np.unique(np.concatenate([pairs, users * setting.n_items + items]))
    return np.divmod(np.sort(rng.choice(pairs, setting.n_ratings, replace=False)), setting.n_items)


def stars(values):
    """Return values on the grid of half stars."""
    return np.clip(np.round(2 * values) / 2, 0.5, 5)


def with_errors(values, users, items, is_test, setting, rng):
    """Return ratings of which some of the training ones are wrong, and which."""
    is_wrong = np.zeros(len(values), bool)
    if setting.errors in ("random", "opposite"):
        is_wrong = (rng.random(len(values)) < 0.1) & ~is_test
    if setting.errors == "shilling":
        is_wrong = (rng.random(setting.n_users) < 0.1)[users]
    pushed = (rng.random(setting.n_items) < 0.1)[items]
    wrong = {
        "clean": values,
        "random": rng.integers(1, 11, len(values)) / 2,
        "opposite": np.where(values >= 3, 0.5, 5.0),
        "shilling": np.where(pushed, 5.0, 0.5),
    }[setting.errors]
    return np.where(is_wrong, wrong, values), is_wrong


# --- Alternating least squares ----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def solve_rows(indptr, columns, values, F, ridge, X):
    """Overwrite the factors of rows, with a ridge by their numbers of entries."""
    r = F.shape[1]
    for b in range(len(X)):
        n = indptr[b + 1] - indptr[b]
        X[b] = 0
        if n == 0:
            continue
        gram, rhs = np.zeros((r, r)), np.zeros(r)
        for i in range(indptr[b], indptr[b + 1]):
            f = F[columns[i]]
            for k in range(r):
                rhs[k] += values[i] * f[k]
                for j in range(r):
                    gram[k, j] += f[k] * f[j]
        for k in range(r):
            gram[k, k] += ridge * n
        X[b] = np.linalg.solve(gram, rhs)


def biases(S, T, n_iter=10, of_users=15, of_items=10):
    """Return what users and items are above the mean, shrunk; the constants are those of Surprise's baselines."""
    users, items, mean = np.zeros(S.shape[0]), np.zeros(S.shape[1]), S.data.mean()
    of_row, of_column = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices
    for _ in range(n_iter):
        rest = np.bincount(of_column, S.data - mean - users[of_row], minlength=len(items))
        items = rest / (of_items + np.diff(T.indptr))
        rest = np.bincount(of_row, S.data - mean - items[of_column], minlength=len(users))
        users = rest / (of_users + np.diff(S.indptr))
    return users, items


def als(S, rank, ridge, with_biases, n_iter=15):
    """Return a function that predicts ratings of users for items."""
    S, T, mean = S.tocsr(), S.T.tocsr(), S.data.mean()
    users, items = biases(S, T) if with_biases else (np.zeros(S.shape[0]), np.zeros(S.shape[1]))
    by_user = S.data - mean - np.repeat(users, np.diff(S.indptr)) - items[S.indices]
    by_item = T.data - mean - np.repeat(items, np.diff(T.indptr)) - users[T.indices]
    P, Q = np.zeros((S.shape[0], rank)), np.random.default_rng(0).normal(0, 0.1, (S.shape[1], rank))
    for _ in range(n_iter):
        solve_rows(S.indptr, S.indices, by_user, Q, ridge, P)
        solve_rows(T.indptr, T.indices, by_item, P, ridge, Q)
    return lambda u, i: mean + users[u] + items[i] + np.einsum("ij,ij->i", P[u], Q[i])


def fit_als(ratings, rank):
    """Return the predictions of held-out ratings by ALS, tuned on a tenth of the training ratings, and what it took."""
    rng = np.random.default_rng(1)
    is_validation = ~ratings.is_test & (rng.random(len(ratings.users)) < 0.1)
    part = ratings.matrix(~ratings.is_test & ~is_validation)
    places = ratings.users[is_validation], ratings.items[is_validation]
    errors = {}
    for choice in [(k, ridge, biased) for k in (rank, 2 * rank) for ridge in RIDGES for biased in (True, False)]:
        errors[choice] = rmse(als(part, *choice)(*places), ratings.values[is_validation])
    best = {biased: min((c for c in errors if c[2] == biased), key=errors.get) for biased in (True, False)}
    train, found = ratings.matrix(~ratings.is_test), {}
    for biased, choice in best.items():
        begin = time.perf_counter()
        predict = als(train, *choice)
        found["with biases" if biased else "without biases"] = {
            "seconds": time.perf_counter() - begin,
            "choice": choice,
            "error": test_error(predict(ratings.users[ratings.is_test], ratings.items[ratings.is_test]), ratings),
        }
    return found


def fit_als_once(ratings, rank):
    """Return the time of one fit of ALS, untuned."""
    train = ratings.matrix(~ratings.is_test)
    begin = time.perf_counter()
    als(train, rank, 0.1, with_biases=True)
    return {"seconds": time.perf_counter() - begin}


# --- Ours -------------------------------------------------------------------------------------------------------------


def fit_ours(ratings, rank):
    """Return the same of the default."""
    from robustnmf import RobustNMF

    train = ratings.matrix(~ratings.is_test)
    model = RobustNMF(rank, zeros="missing", engine="sparse", random_state=0)
    begin = time.perf_counter()
    codes = model.fit_transform(train)
    seconds = time.perf_counter() - begin
    u, i = ratings.users[ratings.is_test], ratings.items[ratings.is_test]
    predicted = np.einsum("ij,ij->i", codes[u], model.components_.T[i])
    wrong = ratings.matrix(~ratings.is_test, ratings.is_wrong.astype(float))
    n_found, n_wrong, both = model.outliers_.sum(), wrong.sum(), model.outliers_.multiply(wrong).sum()
    return {
        "seconds": seconds,
        "error": test_error(predicted, ratings),
        "rejected": float(n_found / train.nnz),
        "precision": float(both / n_found) if n_found else None,
        "recall": float(both / n_wrong) if n_wrong else None,
    }


def rmse(predicted, values):
    """Return the root mean squared error of predictions, limited to the scale of stars."""
    return float(np.sqrt(np.mean((np.clip(predicted, 0.5, 5) - values) ** 2)))


def test_error(predicted, ratings):
    """Return the error of held-out ratings."""
    return rmse(predicted, ratings.values[ratings.is_test])


FITS = {"als": fit_als, "als once": fit_als_once, "ours": fit_ours}


def one(method, setting):
    """Fit in this process, and print what was found."""
    warnings.simplefilter("ignore")
    # Kernels are compiled once for a machine, before time and memory are measured.
    FITS[method](draw(Setting(600, 80, 12_000, 2)), 2)
    ratings = draw(setting)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = FITS[method](ratings, setting.n_tastes)
    found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found["best"] = test_error(ratings.truth[ratings.is_test], ratings)
    found["mean"] = test_error(np.full(ratings.is_test.sum(), ratings.values[~ratings.is_test].mean()), ratings)
    print(json.dumps(found))


def measured(method, setting):
    """Return what a process of its own, with two threads, finds."""
    command = [sys.executable, __file__, "--one", method, json.dumps(asdict(setting))]
    threads = {f"{name}_NUM_THREADS": str(N_THREADS) for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | threads)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured_pairs(method, settings, jobs):
    """Yield what ALS and ours find for each of the settings; fits run side by side."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [[pool.submit(measured, name, setting) for name in (method, "ours")] for setting in settings]
        for theirs, ours in waiting:
            yield theirs.result(), ours.result()


# --- The report -------------------------------------------------------------------------------------------------------


def quality_table(setting, jobs):
    """Yield the lines of the table of errors."""
    yield "| wrong training ratings | best possible | ALS | ALS with biases | robustnmf | precision | recall |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    pairs = measured_pairs("als", [replace(setting, errors=errors) for errors in ERRORS], jobs)
    for (errors, text), (theirs, ours) in zip(ERRORS.items(), pairs, strict=True):
        found = [theirs[name]["error"] for name in ("without biases", "with biases")] + [ours["error"]]
        parts = [f"{ours['best']:.3f}"]
        parts += [f"**{error:.3f}**" if error == min(found) else f"{error:.3f}" for error in found]
        parts += [
            "" if ours[name] is None or errors == "clean" else f"{ours[name]:.0%}" for name in ("precision", "recall")
        ]
        yield f"| {text} | {' | '.join(parts)} |"


def growth_table(setting, jobs):
    """Yield the lines of the table of time and memory."""
    yield "| users | items | ratings | ALS, seconds | ALS, MB | robustnmf, seconds | robustnmf, MB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    small = replace(
        setting, n_users=setting.n_users // 4, n_items=setting.n_items // 4, n_ratings=setting.n_ratings // 4
    )
    more = (small, replace(small, n_ratings=2 * small.n_ratings), replace(small, n_items=2 * small.n_items), setting)
    for chosen, (theirs, ours) in zip(more, measured_pairs("als once", more, jobs), strict=True):
        numbers = [chosen.n_users, chosen.n_items, chosen.n_ratings]
        took = [theirs["seconds"], theirs["megabytes"], ours["seconds"], ours["megabytes"]]
        yield "| " + " | ".join([spaced(n) for n in numbers] + [f"{t:.0f}" for t in took]) + " |"


def spaced(number):
    """Return a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def report(setting, jobs):
    """Yield the lines of the page."""
    yield "# Ratings"
    yield ""
    users, items, ratings = (spaced(n) for n in (setting.n_users, setting.n_items, setting.n_ratings))
    yield (
        f"Simulated ratings of {users} users for {items} items, {ratings} in all: {setting.n_tastes} tastes, half "
        "stars, a tenth held out. Written by `make ratings`."
    )
    yield ""
    yield "Root mean squared error of held-out ratings, in stars; precision and recall are those of `outliers_`:"
    yield ""
    yield from quality_table(setting, jobs)
    yield ""
    yield (
        "ALS is tuned on a tenth of the training ratings: ridge, rank, with and without biases. `robustnmf` is "
        "`RobustNMF(5, zeros='missing')` with its defaults. The best possible predicts what would have been given "
        "without noise. Ratings that are drawn at random are seldom far from what they should be, so few are found; "
        "they count less all the same."
    )
    yield ""
    yield "Time and memory of one fit to clean ratings, beyond the data; the time of ALS is without its tuning:"
    yield ""
    yield from growth_table(setting, jobs)


def main():
    """Write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="part of the users, items and ratings")
    parser.add_argument("--write", action="store_true", help="write the results of a part, too")
    parser.add_argument("--jobs", type=int, default=1, help="fits at the same time, with two threads each")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SETTING"), help="fit in this process")
    options = parser.parse_args()
    if options.one:
        one(options.one[0], Setting(**json.loads(options.one[1])))
        return
    lines = []
    whole, part = Setting(), options.scale
    sizes = (int(part * n) for n in (whole.n_users, whole.n_items, whole.n_ratings))
    for line in report(Setting(*sizes), options.jobs):
        print(line, flush=True)
        lines.append(line)
        if options.write or part == 1:
            RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
