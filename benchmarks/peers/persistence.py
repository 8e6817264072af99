"""Whether fitted models survive pickle, joblib, skops and MLflow in their defaults, and how large a pickle is.

    pip install skops mlflow
    python benchmarks/peers/persistence.py

A way works if the model that comes back gives the same codes. Numbers are in benchmarks/results/peers_persistence.md.
"""

import io
import logging
import os
import pickle
import tempfile
import warnings
from pathlib import Path

import joblib
import numpy as np
from sklearn.decomposition import NMF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

import robustnmf
from robustnmf import RobustNMF, RobustNMFOutlierDetector, TruncatedCauchyNMF

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
SAMPLES, FEATURES = 2000, 100
# MLflow starts a process for each model to find out what it needs, unless it is told.
QUICK = {"pip_requirements": ["robustnmf"]}
STORE = Path(tempfile.mkdtemp())


def data():
    rng = np.random.default_rng(0)
    X = rng.random((SAMPLES, 3)) @ rng.random((3, FEATURES)) + 0.01 * rng.random((SAMPLES, FEATURES))
    return np.where(rng.random(X.shape) < 0.05, 20.0, X)


MODELS = {
    "TruncatedCauchyNMF": lambda: TruncatedCauchyNMF(3, random_state=0),
    **{f"RobustNMF({name!r})": lambda name=name: RobustNMF(3, method=name, random_state=0) for name in ("l2", "huber")},
    "RobustNMF('rnmf-l1')": lambda: RobustNMF(3, method="rnmf-l1", random_state=0),
    "RobustNMF(preset='published')": lambda: RobustNMF(3, preset="published", random_state=0),
    "RobustNMFOutlierDetector": lambda: RobustNMFOutlierDetector(3, random_state=0),
    "pipeline": lambda: make_pipeline(MaxAbsScaler(), TruncatedCauchyNMF(3, random_state=0)),
}


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model):
    buffer = io.BytesIO()
    joblib.dump(model, buffer, compress=3)
    buffer.seek(0)
    return joblib.load(buffer)


def by_skops(model):
    import skops.io

    stored = skops.io.dumps(model)
    return skops.io.loads(stored, trusted=skops.io.get_untrusted_types(data=stored))


def by_mlflow(model, **options):
    import mlflow

    mlflow.set_tracking_uri(STORE.as_uri())
    mlflow.set_experiment("persistence")
    with mlflow.start_run():
        logged = mlflow.sklearn.log_model(model, name="model", **options)
    return mlflow.sklearn.load_model(logged.model_uri)


def by_mlflow_with_types(model):
    import skops.io

    types = skops.io.get_untrusted_types(data=skops.io.dumps(model))
    return by_mlflow(model, skops_trusted_types=types, **QUICK)


WAYS = {
    "pickle": by_pickle,
    "joblib": by_joblib,
    "skops, with the types that it asks about": by_skops,
    "MLflow": by_mlflow,
    "MLflow, with the types that skops asks about": by_mlflow_with_types,
    "MLflow, cloudpickle": lambda model: by_mlflow(model, serialization_format="cloudpickle", **QUICK),
}


class Subclass(NMF):
    """An estimator that is not scikit-learn's own and does nothing new: what can be expected of a way."""


def results_of(model, X):
    return model.transform(X) if hasattr(model, "transform") else model.score_samples(X)


def attempt(way, model, X):
    """Return "" if it works, else why not."""
    try:
        np.testing.assert_array_equal(results_of(way(model), X), results_of(model, X))
    except ImportError as error:
        return f"not installed: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
    return ""


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    X = data()
    fitted = {name: make().fit(X) for name, make in MODELS.items()}
    print(f"robustnmf {robustnmf.__version__}, data of {X.shape}, {X.nbytes:,} bytes\n")
    print("| | works | of |\n| --- | --- | --- |")
    reasons = []
    for way, function in WAYS.items():
        found = {name: attempt(function, model, X[:50]) for name, model in fitted.items()}
        print(f"| {way} | {sum(not reason for reason in found.values())} | {len(found)} |")
        reasons += [f"{way}, {name}: {reason}" for name, reason in found.items() if reason]
    refusal = attempt(by_mlflow, Subclass(3, random_state=0).fit(X), X[:50])
    print(*reasons, f"MLflow, a subclass of scikit-learn's NMF: {refusal or 'works'}", sep="\n")
    print("\n| model | bytes of its pickle |\n| --- | --- |")
    sizes = {"NMF of scikit-learn": NMF(3, random_state=0).fit(X), "TruncatedCauchyNMF": fitted["TruncatedCauchyNMF"]}
    if hasattr(TruncatedCauchyNMF, "compact"):
        sizes["TruncatedCauchyNMF, compact()"] = fitted["TruncatedCauchyNMF"].compact()
    for name, model in sizes.items():
        print(f"| {name} | {len(pickle.dumps(model)):,} |")


if __name__ == "__main__":
    main()
