"""Whitening x = mu + L z, where L L^T approximates the posterior covariance.

Three kinds of L: ``diag``, a vector of scales; ``dense``, a lower-triangular matrix; ``low_rank``,
scales s times a correction along k orthonormal directions U, L = diag(s) (I + U diag(w) U^T), which
costs O(D k) a state. The same formulas serve numbers (:class:`Metric`) and graphs
(:class:`SymbolicMetric`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import solve_triangular

from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.typing import Tensor

_SMALL = 64
"""Dimension up to which a matrix times a single vector is as fast in a plain loop as in BLAS."""

MetricKind = Literal["diag", "dense", "low_rank"]
KINDS: tuple[MetricKind, ...] = get_args(MetricKind)


@dataclass(frozen=True)
class _Whitening:
    """Arrays of a metric, numbers or symbols, and the maps that both know.

    The maps act on the last axis: on a state (D,), a batch (W, D), or probes (..., P, D).

    Attributes
    ----------
    mu
        Centre, shape (D,).
    factor
        Scales (D,), or the lower-triangular L (D, D).
    vectors, weights
        U, shape (D, k), and w, shape (k,), of a ``low_rank`` metric; None for the other kinds.
    """

    mu: Any
    factor: Any
    vectors: Any = None
    weights: Any = None

    @property
    def kind(self) -> MetricKind:
        if self.vectors is not None:
            return "low_rank"
        return "diag" if self.factor.ndim == 1 else "dense"

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays that define the metric, in the order in which compiled code takes them."""
        optional = () if self.vectors is None else (self.vectors, self.weights)
        return (self.mu, self.factor, *optional)

    def scale(self, z: Any) -> Any:
        """L z: a direction in x."""
        if self.kind == "dense":
            return self._rows_transposed(z, self.factor)
        return self._along_vectors(z, self.weights) * self.factor

    def pull_back(self, dlogp: Any) -> Any:
        """L^T g: a gradient in z."""
        if self.kind == "dense":
            return self._rows(dlogp, self.factor)
        return self._along_vectors(dlogp * self.factor, self.weights)

    def _along_vectors(self, rows: Any, weights: Any) -> Any:
        """(I + U diag(weights) U^T) applied to each row."""
        if self.vectors is None:
            return rows
        along = self._rows(rows, self.vectors) * weights
        return rows + self._rows_transposed(along, self.vectors)

    @classmethod
    def _rows_transposed(cls, rows: Any, matrix: Any) -> Any:
        """Each row of (..., D) times the transpose of a matrix."""
        return cls._rows(rows, matrix.T)

    @staticmethod
    def _rows(rows: Any, matrix: Any) -> Any:
        """Each row of (..., D) times a matrix: one matrix product whatever the leading axes."""
        if rows.ndim <= 2:
            return rows.dot(matrix)
        # Not -1 for the rows: it cannot be told where a low-rank metric has no directions.
        n_rows = rows.shape[0]
        for i in range(1, rows.ndim - 1):
            n_rows = n_rows * rows.shape[i]
        flat = rows.reshape((n_rows, rows.shape[-1])).dot(matrix)
        return flat.reshape((*(rows.shape[i] for i in range(rows.ndim - 1)), matrix.shape[1]))


@dataclass(frozen=True)
class Metric(_Whitening):
    """A metric in numbers."""

    def to_x(self, z: np.ndarray) -> np.ndarray:
        """Unwhiten z of shape (..., D)."""
        x = self.scale(z)
        # In its place: of millions of numbers, fresh memory takes longer than the sums.
        x += self.mu
        return x

    def to_x_by_row(self, z: np.ndarray) -> np.ndarray:
        """Unwhiten z of shape (n, D), each row to the last bit as among any others.

        In one product of all of them how a row is rounded depends on how many there are, and on its
        place among them. A product for each takes at most twice as long.
        """
        return self.to_x(z) if self.is_elementwise else _ByRow(*self.arrays).to_x(z)

    def to_z(self, x: np.ndarray) -> np.ndarray:
        """Whiten x of shape (D,)."""
        return self.unscale(x - self.mu)

    def unscale(self, x: np.ndarray) -> np.ndarray:
        """Of directions in x, (D,) or (n, D), those in z of which :meth:`scale` makes them."""
        if self.kind == "dense":
            return solve_triangular(self.factor, x.T, lower=True).T
        return self._along_vectors(x / self.factor, self._inverse_weights)

    def dlogp_to_x(self, dlogp: np.ndarray) -> np.ndarray:
        """Gradients in x, shape (..., D), from those in z."""
        if self.kind == "dense":
            return solve_triangular(self.factor, dlogp.T, trans=1, lower=True).T
        return self._along_vectors(dlogp, self._inverse_weights) / self.factor

    @property
    def is_elementwise(self) -> bool:
        """Whether each coordinate is scaled by itself, so that nothing depends on the others: that
        is how a ``low_rank`` metric begins, and often stays.
        """
        return self.kind == "diag" or (self.kind == "low_rank" and self.vectors.shape[1] == 0)

    def of_columns(self, which: slice | np.ndarray) -> "Metric":
        """That of some coordinates, of an elementwise one."""
        return Metric(self.mu[which], self.factor[which])

    def _along_vectors(self, rows: np.ndarray, weights: Any) -> np.ndarray:
        return rows if self.is_elementwise else super()._along_vectors(rows, weights)

    @property
    def scales(self) -> np.ndarray:
        """Standard deviations in x, shape (D,), of a z that is white."""
        if self.kind == "dense":
            return np.sqrt(np.einsum("ij,ij->i", self.factor, self.factor))
        if self.vectors is None:
            return self.factor
        growth = (1.0 + self.weights) ** 2 - 1.0
        # Of millions of rows, their squares would take as much memory as the vectors do.
        along = np.einsum("ij,ij,j->i", self.vectors, self.vectors, growth)
        return self.factor * np.sqrt(1.0 + along)

    def astype(self, dtype: str) -> Self:
        return type(self)(*(array.astype(dtype, copy=False) for array in self.arrays))

    @property
    def _inverse_weights(self) -> np.ndarray | None:
        return None if self.weights is None else -self.weights / (1.0 + self.weights)


@dataclass(frozen=True)
class _ByRow(Metric):
    """A metric that scales states (n, D) one by one."""

    @staticmethod
    def _rows(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return np.matmul(rows[:, None], matrix)[:, 0]


def identity_metric(kind: MetricKind, size: int) -> Metric:
    """No whitening at all: mu = 0, L = I."""
    return scaled_metric(kind, np.zeros(size), np.ones(size))


def scaled_metric(kind: MetricKind, mu: np.ndarray, scales: np.ndarray) -> Metric:
    """Whitening coordinate by coordinate, with mu and scales of shape (D,)."""
    if kind == "dense":
        return Metric(mu, np.diag(scales))
    if kind == "low_rank":
        return Metric(mu, scales, np.zeros((len(scales), 0)), np.zeros(0))
    return Metric(mu, scales)


@dataclass(frozen=True)
class SymbolicMetric(_Whitening):
    """A metric whose arrays are inputs of a graph, with the maps the sweep needs."""

    @classmethod
    def of(cls, kind: MetricKind, size: int, dtype: str) -> "SymbolicMetric":
        # The rank k is left open: warm-up finds it.
        shapes: dict[str, tuple[int | None, ...]] = {"mu": (size,), "factor": (size,)}
        if kind == "dense":
            shapes["factor"] = (size, size)
        elif kind == "low_rank":
            shapes |= {"vectors": (size, None), "weights": (None,)}
        return cls(**{name: pt.tensor(name, dtype=dtype, shape=s) for name, s in shapes.items()})

    @property
    def params(self) -> list[Tensor]:
        return list(self.arrays)

    @classmethod
    def _rows_transposed(cls, rows: Any, matrix: Any) -> Any:
        if rows.ndim == 1 and not _is_small(matrix):
            # The matrix as it lies: for each product with a transposed one, XLA makes a copy.
            return matrix.dot(rows)
        return cls._rows(rows, matrix.T)

    @staticmethod
    def _rows(rows: Any, matrix: Any) -> Any:
        if rows.ndim == 1 and _is_small(matrix):
            return pt.sum(matrix * rows[:, None], axis=0)
        return _Whitening._rows(rows, matrix)

    def whiten(self, density: GradientFirst) -> GradientFirst:
        """Log-density and gradient as functions of z."""

        def both(z: Tensor) -> list[Tensor]:
            logp, dlogp = density.both(self.mu + self.scale(z))
            return [logp, self.pull_back(dlogp)]

        def gradient(z: Tensor) -> list[Tensor]:
            dlogp, *parts = density.gradient(self.mu + self.scale(z))
            return [self.pull_back(dlogp), *parts]

        return GradientFirst(both, gradient, density.logp)

    def whiten_hvp(
        self, hvp: Callable[[Tensor, Tensor], Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Hessian-vector products as functions of z and a direction in z."""

        def whitened(z: Tensor, probes: Tensor) -> Tensor:
            return self.pull_back(hvp(self.mu + self.scale(z), self.scale(probes)))

        return whitened


def _is_small(matrix: Tensor) -> bool:
    """Whether BLAS, which takes half a microsecond to begin, is no faster for a single row."""
    return all(n is None or n <= _SMALL for n in matrix.type.shape)
