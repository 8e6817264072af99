"""Mutants that no test can tell from the original, and why: by module, what became what, and the reason."""

SAME_THERE = "Both branches have the same value where they meet."
TIE = "They differ only where two rounded numbers are exactly equal."
NOT_USED = "The value is not used where the condition does not hold."
NO_KERNEL = "The engine for NumPy has no such kernel, so that the condition is false either way."
ZERO = "Zero is divided."
SAME_RESULT = "Another way to the same numbers, which costs other time or memory."

EXPLAINED: dict[str, str] = {
    "model/losses: return xp.where(s <= 1, s, 2 * xp.sqrt(s) - 1) -> "
    "return xp.where(s < 1, s, 2 * xp.sqrt(s) - 1)": SAME_THERE,
    "model/losses: return self.loss.rho(xp.where(s <= self.cap, s, self.cap), xp) -> "
    "return self.loss.rho(xp.where(s < self.cap, s, self.cap), xp)": SAME_THERE,
    "model/scales: if abs(scale - last) <= self.tol * scale or scale < vanishing: -> "
    "if abs(scale - last) < self.tol * scale or scale < vanishing:": TIE,
    "model/weighting: return xp.sqrt(xp.sum(M / xp.where(heaviest > 0, heaviest, 1) * (R * R), axis=1, keepdims=True)) "
    "-> "
    "return xp.sqrt(xp.sum(M / xp.where(heaviest > 0, heaviest, 2) * (R * R), axis=1, keepdims=True))": NOT_USED
    + " All weights M of such a sample are zero.",
    "solvers/problem: if not self._square_is_small: -> if not not self._square_is_small:": SAME_RESULT,
    "solvers/problem: if not self._square_is_small: -> if self._square_is_small:": SAME_RESULT,
    "solvers/hals: new = X[:, k] - gradient / xp.where(moves, curvature, 1) -> "
    "new = X[:, k] - gradient / xp.where(moves, curvature, 2)": NOT_USED,
    "solvers/nesterov: break -> pass": "Nothing is left to be solved: the loop goes on with empty arrays.",
    "solvers/nesterov: step = xp.where(usable, 1 / xp.where(usable, L, 1), 0) -> "
    "step = xp.where(usable, 1 / xp.where(usable, L, 1), 1)": "Gradients of a problem so small vanish beside its "
    "solution, whatever the step.",
    "solvers/absolute: mean = start / Y.shape[1] if M is None else start / xp.where(start > 0, xp.sum(M, axis=1), 1) "
    "-> "
    "mean = start / Y.shape[1] if M is None else start / xp.where(start > 0, xp.sum(M, axis=1), 2)": ZERO,
    "solvers/shared_gram: if rule is not None and kernel is not None: -> "
    "if rule is not None and kernel is None:": SAME_RESULT + " The kernel computes the same as what follows.",
    "solvers/armijo: alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0) -> "
    "alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 1)": "Where nothing bends "
    "nothing slopes: the step is zero, whatever its length.",
    # --- Where both sides are the same
    "model/losses: return 1 / xp.sqrt(xp.where(s <= 1, 1, s)) -> return 1 / xp.sqrt(xp.where(s < 1, 1, s))": SAME_THERE,
    "model/losses: ratio = xp.where(A < largest, A, largest) / scale -> "
    "ratio = xp.where(A <= largest, A, largest) / scale": SAME_THERE,
    "solvers/sparse_error: return xp.sign(R) * xp.where(excess > 0, excess, 0) -> "
    "return xp.sign(R) * xp.where(excess >= 0, excess, 0)": SAME_THERE,
    "solvers/sparse_error: update = xp.where(numerator > 0, numerator, 0) / xp.where(positive, denominator, 1) -> "
    "update = xp.where(numerator >= 0, numerator, 0) / xp.where(positive, denominator, 1)": SAME_THERE,
    "solvers/nesterov: gradient = xp.where((X > 0) | (gradient < 0), gradient, 0) -> "
    "gradient = xp.where((X > 0) | (gradient <= 0), gradient, 0)": SAME_THERE,
    "solvers/shared_gram: new = xp.where(unseen[:, k], Z[:, k], xp.where(new > 0, new, 0)) -> "
    "new = xp.where(unseen[:, k], Z[:, k], xp.where(new >= 0, new, 0))": SAME_THERE,
    "solvers/hals: X[:, k] = xp.where(moves, xp.where(new > 0, new, 0), X[:, k]) -> "
    "X[:, k] = xp.where(moves, xp.where(new >= 0, new, 0), X[:, k])": SAME_THERE,
    "solvers/armijo: trial = xp.where(trial > 0, trial, 0) -> trial = xp.where(trial >= 0, trial, 0)": SAME_THERE,
    # --- Ties
    "model/scales: if abs(scale - last) <= self.tol * scale or scale < vanishing: -> "
    "if abs(scale - last) <= self.tol * scale or scale <= vanishing:": TIE,
    "solvers/armijo: enough = decrease >= -self.sufficient * xp.sum(gradient * (trial - X), axis=1) -> "
    "enough = decrease > -self.sufficient * xp.sum(gradient * (trial - X), axis=1)": TIE,
    # --- Values that are not used
    "solvers/armijo: alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0) -> "
    "alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 2), 0)": NOT_USED,
    "solvers/armijo: alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0) -> "
    "alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature >= 0, curvature, 1), 0)": NOT_USED,
    "solvers/armijo: alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0) -> "
    "alpha = xp.where(curvature >= 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0)": "Where nothing bends "
    "nothing slopes: the step is zero, whatever its length.",
    "solvers/armijo: direction = direction / xp.where(steepest > 0, steepest, 1) -> "
    "direction = direction / xp.where(steepest > 0, steepest, 2)": NOT_USED + " The direction is zero.",
    "solvers/armijo: direction = direction / xp.where(steepest > 0, steepest, 1) -> "
    "direction = direction / xp.where(steepest > 1, steepest, 1)": "The length of the direction cancels; it must only "
    "not overflow, and a short one does not.",
    "solvers/sparse_error: update = xp.where(numerator > 0, numerator, 0) / xp.where(positive, denominator, 1) -> "
    "update = xp.where(numerator > 0, numerator, 0) / xp.where(positive, denominator, 2)": NOT_USED,
    "solvers/shared_gram: return xp.sum(Q * along * along, axis=1) * xp.sum(curvature, axis=1) / "
    "xp.where(seen > 0, seen, 1) -> "
    "return xp.sum(Q * along * along, axis=1) * xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 2)": ZERO,
    "solvers/shared_gram: length = slope / xp.where(bend > 0, bend, 1) -> "
    "length = slope / xp.where(bend >= 0, bend, 1)": NOT_USED,
    "solvers/shared_gram: unseen_too = xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 1) -> "
    "unseen_too = xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 2)": "It is multiplied by a curvature along the "
    "move that is zero where the checks see nothing.",
    # --- Other ways to the same numbers
    "solvers/shared_gram: some = engine.rows_at_a_time or len(W) -> "
    "some = engine.rows_at_a_time and len(W)": SAME_RESULT,
    "solvers/armijo: break -> pass": "No row is left to be tried: the loop goes on and changes nothing.",
    "solvers/shared_gram: Z = xp.asarray(X0 * s, copy=True) -> Z = xp.asarray(X0 * s, copy=False)": SAME_RESULT
    + " The product is a new array anyway.",
    "solvers/shared_gram: Q = xp.ones_like(move[:, :1] * A[None, :, 0]) if Q is None else Q[:, checks] -> "
    "Q = xp.ones_like(move[:, :1] / A[None, :, 0]) if Q is None else Q[:, checks]": SAME_RESULT
    + " Only the shape of the product counts.",
    "solvers/problem: return X @ gram[0] if gram.shape[0] == 1 else (gram @ X[:, :, None])[:, :, 0] -> "
    "return X @ gram[0] if gram.shape[0] == 2 else (gram @ X[:, :, None])[:, :, 0]": SAME_RESULT
    + " One matrix is taken for all.",
    "solvers/problem: return xp.reshape(xp.take(packed, places, axis=1), (-1, r, r)) -> "
    "return xp.reshape(xp.take(packed, places, axis=1), (-2, r, r))": SAME_RESULT + " NumPy takes any negative number.",
    "solvers/problem: return gram + self.penalty.ridge * self.xp.eye(gram.shape[1], dtype=gram.dtype, "
    "device=device(gram)) -> "
    "return gram + self.penalty.ridge * self.xp.eye(gram.shape[2], dtype=gram.dtype, device=device(gram))": "A Gram "
    "matrix is square.",
    "solvers/nesterov: rows = xp.nonzero((step > 0) & (target > 0))[0] -> "
    "rows = xp.nonzero((step > 0) & (target >= 0))[0]": SAME_RESULT + " What is solved already stays where it is.",
    "model/scales: if mean_kernel >= 1.0: -> if mean_kernel > 1.0:": SAME_RESULT
    + " The next line makes the scale zero.",
    "model/scales: if mean_kernel >= 1.0: -> if mean_kernel >= 2.0:": SAME_RESULT
    + " The next line makes the scale zero.",
    "solvers/shared_gram: if kernel is not None and rule is not None and (not penalties.product): -> "
    "if kernel is not None and rule is not None and penalties.product:": NO_KERNEL,
    "solvers/shared_gram: if kernel is not None and rule is not None and (not penalties.product): -> "
    "if kernel is not None and rule is None and (not penalties.product):": NO_KERNEL,
    # --- More of each kind
    "solvers/shared_gram: length = xp.where((bend > 0) & (length < 0.5), xp.where(length > 0, length, 0), 1) -> "
    "length = xp.where((bend > 0) & (length < 0.5), xp.where(length >= 0, length, 0), 1)": SAME_THERE,
    "solvers/nesterov: return xp.where(X > 0, X, 0) -> return xp.where(X >= 0, X, 0)": SAME_THERE,
    "solvers/absolute: new = xp.where(weighted, xp.where(new > 0, new, 0), X[:, k]) -> "
    "new = xp.where(weighted, xp.where(new >= 0, new, 0), X[:, k])": SAME_THERE,
    "solvers/nesterov: done = _projected_norm(gradient, h, xp) <= target -> "
    "done = _projected_norm(gradient, h, xp) < target": TIE,
    "solvers/absolute: middle = xp.argmax(xp.astype(cumulated >= 0.5 * total, xp.int8), axis=1)[:, None] -> "
    "middle = xp.argmax(xp.astype(cumulated > 0.5 * total, xp.int8), axis=1)[:, None]": TIE
    + " Then both medians, and all between, have the same loss.",
    "solvers/nesterov: step = xp.where(usable, 1 / xp.where(usable, L, 1), 0) -> "
    "step = xp.where(usable, 1 / xp.where(usable, L, 2), 0)": NOT_USED,
    "solvers/shared_gram: length = slope / xp.where(bend > 0, bend, 1) -> "
    "length = slope / xp.where(bend > 0, bend, 2)": NOT_USED,
    "solvers/multiplicative: X = xp.where(positive, X * problem.correlation / xp.where(positive, denominator, 1), X) "
    "-> X = xp.where(positive, X * problem.correlation / xp.where(positive, denominator, 2), X)": NOT_USED,
    "model/outliers: count = xp.where(count > 0, count, 1) -> count = xp.where(count > 0, count, 2)": ZERO,
    "solvers/shared_gram: return Q @ squares / xp.where(total > 0, total, 1) -> "
    "return Q @ squares / xp.where(total > 0, total, 2)": ZERO,
    "solvers/shared_gram: return Q @ squares / xp.where(total > 0, total, 1) -> "
    "return Q @ squares * xp.where(total > 0, total, 1)": "A factor that all samples share: only proportions of the "
    "Gram matrix that it leads to count.",
    "solvers/problem: _TEMPORARY_ENTRIES = 2 ** 23 -> _TEMPORARY_ENTRIES = 2 ** 24": SAME_RESULT,
    "solvers/problem: _TEMPORARY_ENTRIES = 2 ** 23 -> _TEMPORARY_ENTRIES = 3 ** 23": SAME_RESULT,
    "solvers/nesterov: rows = xp.nonzero((step > 0) & (target > 0))[0] -> "
    "rows = xp.nonzero((step >= 0) & (target > 0))[0]": SAME_RESULT + " Steps of length zero go nowhere.",
    "solvers/armijo: open_rows = alpha > 0 -> open_rows = alpha >= 0": SAME_RESULT
    + " Steps of length zero go nowhere.",
    "model/weighting: return Q if Q.shape == R.shape else Q * xp.ones_like(R) -> "
    "return Q if Q.shape == R.shape else Q / xp.ones_like(R)": SAME_RESULT + " One way to multiply by 1, or another.",
    "solvers/shared_gram: checks = [engine.place(np.arange(n)[rows]) for n, rows in zip(lengths, "
    "checked_rows(lengths), strict=True)] -> checks = [engine.place(np.arange(n)[rows]) "
    "for n, rows in zip(lengths, checked_rows(lengths), "
    "strict=False)]": "There are as many as blocks.",
    "solvers/armijo: direction = xp.where((X > 0) | (gradient < 0), gradient, 0) -> "
    "direction = xp.where((X > 0) | (gradient <= 0), gradient, 0)": SAME_THERE,
    "solvers/absolute: h = xp.where(h > 0, h, 0) -> h = xp.where(h >= 0, h, 0)": SAME_THERE,
    "solvers/nesterov: lower = xp.sum(mean_gradient * change, axis=1) <= 0 -> "
    "lower = xp.sum(mean_gradient * change, axis=1) < 0": TIE + " Then one is as good as the other.",
    "solvers/shared_gram: descent = xp.where(unseen, 0, descent / s) -> "
    "descent = xp.where(unseen, 1, descent / s)": NOT_USED,
    "solvers/problem: _TEMPORARY_ENTRIES = 2 ** 23 -> _TEMPORARY_ENTRIES = 2 * 23": SAME_RESULT,
    "solvers/nesterov: rows = xp.nonzero((step > 0) & (target > 0))[0] -> "
    "rows = xp.nonzero((step > 0) | (target > 0))[0]": SAME_RESULT + " What is solved stays; steps of length zero go "
    "nowhere.",
    "solvers/shared_gram: return Q @ squares / xp.where(total > 0, total, 1) -> "
    "return Q @ squares / xp.where(total > 1, total, 1)": "A factor that all samples share: only proportions of the "
    "Gram matrix that it leads to count.",
    "solvers/hals: break -> pass": "No row moves any more: the loop goes on and changes nothing.",
    "solvers/shared_gram: return xp.where(xp.isfinite(new), xp.where(new > 0, new, 0), X0) -> "
    "return xp.where(xp.isfinite(new), xp.where(new >= 0, new, 0), X0)": SAME_THERE,
    "solvers/nesterov: usable = L > smallest_curvature(L, xp) -> usable = L >= smallest_curvature(L, xp)": TIE,
}
