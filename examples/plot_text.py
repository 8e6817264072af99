"""
Topics of news with wrong counts
================================

Tf-idf of 395 news texts is a sparse matrix. Two of a hundred stored entries are made 50 times as large. Topics of
ordinary NMF then are words that seldom meet; :class:`robustnmf.RobustNMF` finds the errors, and its topics make sense.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.feature_extraction.text import TfidfTransformer

from robustnmf import RobustNMF

try:
    from lda import datasets
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("This example takes its texts from the package lda: pip install lda") from error

# %%
# Data
# ----
# Counts of words in news of Reuters come with the package ``lda`` (MPL-2.0). The 2000 most frequent words are used.
counts, words = datasets.load_reuters(), np.array(datasets.load_reuters_vocab())
frequent = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:2000])
counts, words = sparse.csr_array(counts[:, frequent]), words[frequent]
clean = sparse.csr_array(TfidfTransformer().fit_transform(counts))

rng = np.random.default_rng(0)
wrong = rng.random(clean.nnz) < 0.02
X = clean.copy()
X.data[wrong] *= 50

# %%
# Fit
# ---
# Both models have twelve components, one for each topic. Nothing is tuned.
models = {"NMF": NMF(12, init="nndsvda", max_iter=1000, random_state=0), "robustnmf": RobustNMF(12, random_state=0)}
for model in models.values():
    model.fit(X)
found = sparse.csr_array(models["robustnmf"].outliers_).toarray()[clean.nonzero()]
print(f"mask: {found[wrong].mean():.1%} of the wrong entries, {found[~wrong].mean():.1%} of the others")

# %%
# Result
# ------
# A topic is coherent if its words meet in the same texts: this is the normalised pointwise mutual information of pairs
# of its ten strongest words, in the clean counts. It is -1 if they never meet, and 1 if they always do.
occurs = (counts > 0).toarray()


def coherence(component):
    strongest = np.argsort(-component)[:10]
    both = occurs[:, strongest].T.astype(float) @ occurs[:, strongest] / len(occurs)
    first, second = np.triu_indices(10, 1)
    pairs, alone = both[first, second], np.diag(both)
    together = np.log(np.maximum(pairs, 1e-9) / (alone[first] * alone[second])) / -np.log(np.maximum(pairs, 1e-9))
    return np.where(pairs > 0, together, -1).mean()


figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharex=True, layout="constrained")
for ax, (name, model), colour in zip(axes, models.items(), ("C1", "C0"), strict=True):
    values = np.array([coherence(component) for component in model.components_])
    order = np.argsort(values)
    labels = [" ".join(words[np.argsort(-model.components_[topic])[:4]]) for topic in order]
    ax.barh(labels, values[order], color=colour)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(title=f"{name}: mean {values.mean():.2f}", xlabel="coherence of the topic")
    print(f"{name}: mean coherence {values.mean():.2f}, best topic: {labels[-1]}")

# %%
# Names that belong together, as those of one family or one country, are in one topic.
