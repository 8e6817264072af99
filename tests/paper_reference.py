"""Algorithms 1 and 2 of the paper, transcribed literally: one column, one row, one entry at a time.

Slow, and independent of the package: nothing is imported from it. Where the paper leaves something open, the choices
of the package's documentation are made: the scale of the current residuals, truncation in both half-steps, the
projection of z at the end of Algorithm 1, outliers taken from all entries.
"""

import numpy as np


def algorithm_1(W, v, d, h0, tol=1e-3, max_iter=500):
    """Optimal gradient method for min_{h >= 0} 1/2 (v - W h)' D (v - W h), D = diag(d)."""
    D = np.diag(d)
    z, h, alpha = h0.copy(), h0.copy(), 1.0
    L = np.linalg.norm(W.T @ D @ W, 2)

    def gradient(x):
        return W.T @ D @ W @ x - W.T @ D @ v

    def projected_gradient_norm(x):
        g = gradient(x)
        return np.linalg.norm([g[k] if x[k] > 0 else min(0.0, g[k]) for k in range(len(x))])

    first = projected_gradient_norm(h0)
    if L == 0 or first == 0:
        return h0
    for _ in range(max_iter):
        h_new = np.maximum(z - gradient(z) / L, 0)
        alpha_new = (1 + np.sqrt(4 * alpha**2 + 1)) / 2
        z = h_new + (alpha - 1) / alpha_new * (h_new - h)
        h, alpha = h_new, alpha_new
        if projected_gradient_norm(h) <= tol * first:
            break
    return np.maximum(z, 0)


def nagy(E, observed, gamma):
    """Iterate eq. (3-11) over the observed entries to the fixed point."""
    for _ in range(1000):
        e0 = np.mean([1 / (1 + (E[i, j] / gamma) ** 2) for i, j in observed])
        gamma, last = gamma * np.sqrt(1 / e0 - 1), gamma
        if abs(gamma - last) <= 1e-13 * gamma:
            break
    return gamma


def three_sigma_outliers(E, observed):
    """Return the set of outliers of section 3.3."""
    theta = {ij: abs(E[ij]) for ij in observed}
    median = np.median(list(theta.values()))
    half = [t for t in theta.values() if t <= median]
    mu, delta = np.mean(half), np.std(half)
    return {ij for ij, t in theta.items() if abs(t - mu) > 3 * delta}


def feature_outliers(E, observed):
    """Return the outliers of section 3.3 with the statistics of each feature."""
    rows = sorted({i for i, _ in observed})
    return set().union(*(three_sigma_outliers(E, [ij for ij in observed if ij[0] == i]) for i in rows))


def algorithm_2(V, W, H, n_iter, outliers=three_sigma_outliers, user_weights=None):
    """Half-quadratic programming; NaN in V is missing. Return W, H and the scale after each iteration."""
    m, n = V.shape
    observed = [(i, j) for i in range(m) for j in range(n) if not np.isnan(V[i, j])]
    filled = np.nan_to_num(V)
    M = np.where(np.isnan(V), 0.0, 1.0 if user_weights is None else user_weights)

    def weights(E, gamma, omega):
        Q = M / (1 + (E / gamma) ** 2)
        for ij in omega:
            Q[ij] = 0
        return Q

    W, H, scales = W.copy(), H.copy(), []
    gamma = nagy(filled - W @ H, observed, np.median([abs(filled - W @ H)[ij] for ij in observed]))
    for _ in range(n_iter):
        E = filled - W @ H
        cut = _cuts(E, observed, outliers)
        Q = weights(E, gamma, outliers(E, observed))
        for j in range(n):
            H[:, j] = algorithm_1(W, filled[:, j], Q[:, j], H[:, j])
        E = filled - W @ H
        Q = weights(E, gamma, {(i, j) for i, j in observed if abs(E[i, j]) > cut[i]})
        for i in range(m):
            W[i] = algorithm_1(H.T, filled[i], Q[i], W[i])
        E = filled - W @ H
        gamma = nagy(E, observed, gamma)
        scales.append(gamma)
    return W, H, scales


def _cuts(E, observed, outliers):
    """Return the threshold of each feature that the rule's statistics imply, for the truncation of line 7."""
    cut = np.empty(E.shape[0])
    for i in range(E.shape[0]):
        entries = observed if outliers is three_sigma_outliers else [ij for ij in observed if ij[0] == i]
        theta = np.array([abs(E[ij]) for ij in entries])
        half = theta[theta <= np.median(theta)]
        cut[i] = np.inf if outliers is no_outliers else half.mean() + 3 * half.std()
    return cut


def no_outliers(E, observed):
    """Return the outliers of CauchyNMF: none."""
    return set()
