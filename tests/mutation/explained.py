"""Mutants that no test can tell from the original, and why: by module, what became what, and the reason."""

SAME_THERE = "Both branches have the same value where they meet."
TIE = "They differ only where two rounded numbers are exactly equal."
NOT_USED = "The value is not used where the condition does not hold."
SAME_RESULT = "Another way to the same numbers, which costs other time or memory."

EXPLAINED: dict[str, str] = {
    "losses: return xp.where(s <= 1, s, 2 * xp.sqrt(s) - 1) -> "
    "return xp.where(s < 1, s, 2 * xp.sqrt(s) - 1)": SAME_THERE,
    "losses: return self.loss.rho(xp.where(s <= self.cap, s, self.cap), xp) -> "
    "return self.loss.rho(xp.where(s < self.cap, s, self.cap), xp)": SAME_THERE,
    "scales: if abs(scale - last) <= self.tol * scale or scale < vanishing: -> "
    "if abs(scale - last) < self.tol * scale or scale < vanishing:": TIE,
    "weighting: return xp.sqrt(xp.sum(M / xp.where(heaviest > 0, heaviest, 1) * (R * R), axis=1, keepdims=True)) -> "
    "return xp.sqrt(xp.sum(M / xp.where(heaviest > 0, heaviest, 2) * (R * R), axis=1, keepdims=True))": NOT_USED
    + " All weights M of such a sample are zero.",
    "solvers/problem: if not self._square_is_small: -> if not not self._square_is_small:": SAME_RESULT,
    "solvers/problem: if not self._square_is_small: -> if self._square_is_small:": SAME_RESULT,
    "solvers/hals: new = X[:, k] - gradient / xp.where(moves, curvature, 1) -> "
    "new = X[:, k] - gradient / xp.where(moves, curvature, 2)": NOT_USED,
    "solvers/nesterov: usable = L > xp.finfo(L.dtype).tiny / xp.finfo(L.dtype).eps -> "
    "usable = L >= xp.finfo(L.dtype).tiny / xp.finfo(L.dtype).eps": TIE,
    "solvers/nesterov: break -> pass": "Nothing is left to be solved: the loop goes on with empty arrays.",
    "solvers/nesterov: step = xp.where(usable, 1 / xp.where(usable, L, 1), 0) -> "
    "step = xp.where(usable, 1 / xp.where(usable, L, 1), 1)": "Gradients of a problem so small vanish beside its "
    "solution, whatever the step.",
    "solvers/one_pass: bend, seen = (sum(terms) for terms in zip(*judged, strict=True)) -> "
    "bend, seen = (sum(terms) for terms in zip(*judged, strict=False))": "All of them are pairs.",
    "solvers/absolute: mean = start / Y.shape[1] if M is None else start / xp.where(start > 0, xp.sum(M, axis=1), 1) "
    "-> "
    "mean = start / Y.shape[1] if M is None else start / xp.where(start > 0, xp.sum(M, axis=1), 2)": "Zero is divided.",
    "solvers/shared_gram: steepness = xp.where(diagonal > 0, diagonal, 1) -> "
    "steepness = xp.where(diagonal > 0, diagonal, 2)": NOT_USED,
    "solvers/one_pass: if rule is not None and kernel is not None: -> "
    "if rule is not None and kernel is None:": SAME_RESULT + " The kernel is a twin of what follows.",
    "solvers/one_pass: codes = [X[of_judges] for X, of_judges in zip(Ht, judges, strict=True)] -> "
    "codes = [X[of_judges] for X, of_judges in zip(Ht, judges, strict=False)]": "Both are cut into the same blocks.",
    "solvers/armijo: alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0) -> "
    "alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 1)": "Where nothing bends "
    "nothing slopes: the step is zero, whatever its length.",
}
