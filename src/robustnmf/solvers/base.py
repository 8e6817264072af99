"""What every solver is: two half-steps make a sweep of Algorithm 2, unless it can do better."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import IncompatibleError
from robustnmf.kernels.predictions import predictions
from robustnmf.model.losses import Loss, Squared
from robustnmf.model.penalties import Penalty
from robustnmf.model.weighting import Weighting, masked_out
from robustnmf.solvers.normal_equations import basis_by_sums
from robustnmf.solvers.objective import Objective, Terms
from robustnmf.solvers.problem import Problem
from robustnmf.utils.arrays import Array, Blocks, Namespace

UNIFORM = Weighting(Squared(), 1.0)
"""Leaves the weights M of the entries as they are."""


class Solver:
    """Improves the factors of a weighted model; a subclass has at least `improve_rows`.

    Lines 2 and 3 of the paper leave open which scale the weights use; it is the one of the current residuals. Line 7
    does not repeat the truncation; here weights are always truncated, as eq. (3-5) says.
    """

    __slots__ = ()

    works_by_sums: ClassVar[bool] = False
    """Whether it improves the basis from sums over samples, where features cannot be gathered."""
    solves_least_squares: ClassVar[bool] = False
    """Whether it lowers weighted squares, and so serves any loss, with penalties too."""
    keeps_fixed: ClassVar[bool] = False
    """Whether it can leave the first columns of the basis as they are."""
    models_sparse_errors: ClassVar[bool] = False
    """Whether its model has a sparse error S beside the factors, V ~ WH + S."""
    sweeps_by_kernel: ClassVar[bool] = False
    """Whether `Kernels.sweep` does what its sweep does."""

    def accepts(self, loss: Loss) -> bool:
        """Return whether it can lower a loss.

        Parameters
        ----------
        loss : Loss
            The loss of the model.

        Returns
        -------
        bool
            Whether no step raises it.
        """
        return self.solves_least_squares

    def improve_rows(self, Y: Array, M: Array | None, X: Array, A: Array, terms: Terms, engine: Engine) -> Array:
        """Return X (B, r), improved in Y ~ X A' row by row, as a new array.

        No row's objective rises. Every row is improved by itself: neither the other rows nor their number may change
        the result. A row whose weights are all zero keeps its start.

        Parameters
        ----------
        Y : array (B, p)
            Data: samples in rows for H, with p = m; features in rows for W, with p = n.
        M : array (B, p) or None
            Weights, 0 where missing; None if all are 1.
        X : array (B, r)
            The factor that is improved: H' or W.
        A : array (p, r)
            The other factor: W or H'.
        terms : Terms
            Weighting of the residuals, penalty on this factor, and how many of its first columns stay.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.

        Returns
        -------
        array (B, r)
            The better factor, non-negative.
        """
        raise NotImplementedError

    def half_step(
        self,
        Y: Array,
        M: Array | None,
        X: Array,
        threshold: Array | None = None,
        *,
        A: Array,
        weighting: Weighting,
        penalty: Penalty | None = None,
        fixed: int = 0,
        engine: Engine,
        xp: Namespace,
    ) -> Array:
        """Return one factor, or a block of it, improved by the current residuals; a function of blocks.

        H is updated with Y = V' (a block of samples), X = H', A = W; W with Y = V, X = W, A = H' and one `threshold`
        per row.

        Parameters
        ----------
        Y : array (B, p)
            Data: samples in rows for H, with p = m; features in rows for W, with p = n.
        M : array (B, p) or None
            Weights, 0 where missing; None if all are 1.
        X : array (B, r)
            The factor that is improved: H' or W.
        threshold : array (B, 1) or None
            Magnitude beyond which entries of a row are outliers, in place of that of the weighting.
        A : array (p, r)
            The other factor: W or H'.
        weighting : Weighting
            Loss, scale and thresholds, from the current residuals.
        penalty : Penalty or None
            On this factor.
        fixed : int
            Columns of it, the first ones, that stay as they are.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.
        xp : namespace
            Of the arrays.

        Returns
        -------
        array (B, r)
            The better factor.
        """
        if threshold is not None:
            weighting = replace(weighting, threshold=threshold)
        return self.improve_rows(Y, M, X, A, Terms(weighting, penalty, fixed), engine)

    def sweep(
        self,
        V: Blocks,
        M: Blocks | None,
        W: Array,
        Ht: Blocks,
        objective: Objective,
        engine: Engine,
        hidden: Blocks | None = None,
    ) -> tuple[Array, Blocks]:
        """Return W (m, r) and the codes after one iteration: lines 2 to 6 improve the codes, 7 to 9 the basis.

        Parameters
        ----------
        V : blocks
            Data, blocks of samples in rows, (n, m) in all; 0 where missing.
        M : blocks or None
            Weights, cut alike, 0 where missing; None if all are 1.
        W : array (m, r)
            Basis.
        Ht : blocks
            Codes, (n, r) in all, cut as V.
        objective : Objective
            Weighting of the residuals, penalties on both factors, and how many columns of W stay.
        engine : Engine
            What works on the blocks.
        hidden : blocks of positions, (k, 2) in all, or None
            Sample (within its block) and feature of entries that do not count, in the order of samples.

        Returns
        -------
        W, Ht : array (m, r), blocks
            The better factors.
        """
        if hidden is not None:
            M = engine.map(masked_out, V, M, hidden)
        weighting, penalties, fixed = objective
        penalty = penalties.of(penalties.codes, W, weighting.scale, engine.xp)
        Ht = engine.map(self.half_step, V, M, Ht, A=W, weighting=weighting, penalty=penalty, engine=engine)
        if fixed == W.shape[1]:
            return W, Ht
        improve = self._gathered_basis if engine.gathers_features else self.basis_by_sums
        return improve(V, M, W, Ht, objective, engine), Ht

    def _gathered_basis(
        self, V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, objective: Objective, engine: Engine
    ) -> Array:
        """Return the basis improved by a half-step with all samples of a feature in a row."""
        weighting, penalties, fixed = objective
        A = engine.join(Ht)
        penalty = penalties.of(penalties.basis, A, weighting.scale, engine.xp)
        shared: dict[str, Any] = {"A": A, "penalty": penalty, "fixed": fixed, "engine": engine}
        if weighting.loss.group == "sample":  # the weights of features depend on whole samples
            Q = engine.map(_sample_weights, V, M, Ht, W=W, weighting=weighting)
            return engine.map_features(self.half_step, V, Q, W, weighting=UNIFORM, **shared)
        threshold = None if weighting.threshold is None else weighting.threshold[:, None]
        return engine.map_features(self.half_step, V, M, W, threshold, weighting=weighting, **shared)

    def basis_by_sums(
        self, V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, objective: Objective, engine: Engine
    ) -> Array:
        """Return the basis improved from sums over samples, if the solver can work with them.

        Parameters
        ----------
        V : blocks
            Data, blocks of samples in rows, (n, m) in all; 0 where missing.
        M : blocks or None
            Weights, cut alike, 0 where missing; None if all are 1.
        W : array (m, r)
            Basis.
        Ht : blocks
            Codes, (n, r) in all, cut as V.
        objective : Objective
            Weighting of the residuals, penalties on both factors, and how many columns of W stay.
        engine : Engine
            What works on the blocks.

        Returns
        -------
        array (m, r)
            The better basis.
        """
        raise IncompatibleError(
            f"solver {self} needs all samples of a feature at once, and this data is not in one memory. Use a solver "
            "that works with sums over samples."
        )


class LeastSquaresSolver(Solver):
    """Lowers the quadratic majoriser of a loss; a subclass has `solve`, and serves every loss."""

    __slots__ = ()

    works_by_sums: ClassVar[bool] = True
    solves_least_squares: ClassVar[bool] = True

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return better solutions than `X0`, shape (B, r), non-negative, a new array; see `Solver.improve_rows`.

        Parameters
        ----------
        problem : Problem
            B weighted least-squares problems, eq. (3-6) and (3-7).
        X0 : array (B, r)
            Where they start, non-negative; must not be changed.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.

        Returns
        -------
        array (B, r)
            The solutions. No problem has a larger objective than at its start, and none depends on the others.
        """
        raise NotImplementedError

    def improve_rows(self, Y: Array, M: Array | None, X: Array, A: Array, terms: Terms, engine: Engine) -> Array:
        """Reweight by the current residuals and solve the weighted least-squares problem of each row.

        Parameters
        ----------
        Y : array (B, p)
            Data: samples in rows for H, with p = m; features in rows for W, with p = n.
        M : array (B, p) or None
            Weights, 0 where missing; None if all are 1.
        X : array (B, r)
            The factor that is improved: H' or W.
        A : array (p, r)
            The other factor: W or H'.
        terms : Terms
            Weighting of the residuals, penalty on this factor, and how many of its first columns stay.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.

        Returns
        -------
        array (B, r)
            The better factor.
        """
        xp, (weighting, penalty, fixed) = engine.xp, terms
        residual = Y - predictions(X, A, Y)
        Q = weighting.weights(residual, M, xp)
        if not fixed:
            return self.solve(Problem(A, Y, Q, xp, penalty, residual), X, engine)
        known, A = A[:, :fixed], A[:, fixed:]
        penalty = penalty if penalty is None else penalty._replace(linear=penalty.linear[fixed:])
        found = self.solve(Problem(A, Y - X[:, :fixed] @ known.T, Q, xp, penalty), X[:, fixed:], engine)
        return xp.concat([X[:, :fixed], found], axis=1)

    def basis_by_sums(
        self, V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, objective: Objective, engine: Engine
    ) -> Array:
        """Return the basis improved by its normal equations.

        Parameters
        ----------
        V : blocks
            Data, blocks of samples in rows, (n, m) in all; 0 where missing.
        M : blocks or None
            Weights, cut alike, 0 where missing; None if all are 1.
        W : array (m, r)
            Basis.
        Ht : blocks
            Codes, (n, r) in all, cut as V.
        objective : Objective
            Weighting of the residuals, penalties on both factors, and how many columns of W stay.
        engine : Engine
            What works on the blocks.

        Returns
        -------
        array (m, r)
            The better basis.
        """
        return basis_by_sums(V, M, W, Ht, objective, self.solve, engine)


class LossSolver(Solver):
    """Lowers a loss itself instead of its quadratic majoriser; a subclass has `accepts` and `improve`."""

    __slots__ = ()

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        """Return X (B, r) with a lower loss of Y - X A' in every row, as a new array.

        Outliers have been taken out of the weights M: `weighting` is that of the loss alone.

        Parameters
        ----------
        Y : array (B, p)
            Data: samples in rows for H, with p = m; features in rows for W, with p = n.
        M : array (B, p) or None
            Weights, 0 where missing or rejected; None if all are 1.
        X : array (B, r)
            The factor that is improved: H' or W.
        A : array (p, r)
            The other factor: W or H'.
        weighting : Weighting
            Loss and scale.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.

        Returns
        -------
        array (B, r)
            The better factor, non-negative.
        """
        raise NotImplementedError

    def improve_rows(self, Y: Array, M: Array | None, X: Array, A: Array, terms: Terms, engine: Engine) -> Array:
        """Lower the loss of each row; what is rejected stays so, or the losses of two points could not be compared.

        Parameters
        ----------
        Y : array (B, p)
            Data: samples in rows for H, with p = m; features in rows for W, with p = n.
        M : array (B, p) or None
            Weights, 0 where missing; None if all are 1.
        X : array (B, r)
            The factor that is improved: H' or W.
        A : array (p, r)
            The other factor: W or H'.
        terms : Terms
            Weighting of the residuals, penalty on this factor, and how many of its first columns stay.
        engine : Engine
            What it works on: `engine.xp` is the array namespace, `engine.kernels` has faster copies of functions.

        Returns
        -------
        array (B, r)
            The better factor.
        """
        weighting = terms.weighting
        if weighting.threshold is not None:
            M, weighting = weighting.kept(Y - predictions(X, A, Y), M, engine.xp), weighting.without_rule()
        return self.improve(Y, M, X, A, weighting, engine)


def as_solver(part: Any) -> Any:
    """Return a solver: an object that only has `solve`, or `accepts` and `improve`, becomes one."""
    if isinstance(part, Solver | type):
        return part
    if hasattr(part, "solve"):
        return BySolve(part)
    return ByImprove(part) if hasattr(part, "accepts") and hasattr(part, "improve") else part


@dataclass(frozen=True)
class BySolve(LeastSquaresSolver):
    """An object that has `solve`, as a solver."""

    part: Any

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        return self.part.solve(problem, X0, engine)


@dataclass(frozen=True)
class ByImprove(LossSolver):
    """An object that has `accepts` and `improve`, as a solver."""

    part: Any

    def accepts(self, loss: Loss) -> bool:
        return bool(self.part.accepts(loss))

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        return self.part.improve(Y, M, X, A, weighting, engine)


@block_function(recomputed=True)
def _sample_weights(Vt: Array, M: Array | None, Ht: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> Array:
    """Return the weights of a block of samples, (n, m)."""
    Q = weighting.weights(Vt - predictions(Ht, W, Vt), M, xp)
    return xp.ones_like(Vt) if Q is None else Q
