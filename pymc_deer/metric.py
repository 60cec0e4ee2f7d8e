"""Whitening x = mu + L z, where L L^T approximates the posterior covariance.

A metric has a numeric side (:class:`Metric`: arrays, used by warm-up) and a symbolic side
(:class:`SymbolicMetric`: what the graph does with them). Both come in two kinds: ``diag``, where L
is a vector of scales, and ``dense``, where it is a lower-triangular matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import solve_triangular

from pymc_deer.typing import Tensor

MetricKind = Literal["diag", "dense"]


@dataclass(frozen=True)
class Metric:
    """Centre mu, shape (D,), and factor L: shape (D,) if diagonal, (D, D) lower triangular."""

    mu: np.ndarray
    factor: np.ndarray

    @property
    def kind(self) -> MetricKind:
        return "diag" if self.factor.ndim == 1 else "dense"

    def to_x(self, z: np.ndarray) -> np.ndarray:
        """Unwhiten z of shape (..., D)."""
        if self.kind == "diag":
            return self.mu + z * self.factor
        return self.mu + z @ self.factor.T

    def to_z(self, x: np.ndarray) -> np.ndarray:
        """Whiten x of shape (D,)."""
        if self.kind == "diag":
            return (x - self.mu) / self.factor
        return solve_triangular(self.factor, x - self.mu, lower=True)

    def astype(self, dtype: str) -> "Metric":
        return Metric(self.mu.astype(dtype), self.factor.astype(dtype))


def identity_metric(kind: MetricKind, size: int) -> Metric:
    """No whitening at all: mu = 0, L = I."""
    factor = np.ones(size) if kind == "diag" else np.eye(size)
    return Metric(np.zeros(size), factor)


@dataclass(frozen=True)
class SymbolicMetric:
    """The metric's arrays as graph inputs, with the maps the sweep needs.

    All maps act on the last axis and work for a state (D,), a batch (W, D) and probes (..., P, D).
    """

    mu: Tensor
    factor: Tensor

    @classmethod
    def of(cls, kind: MetricKind, size: int, dtype: str) -> "SymbolicMetric":
        shape = (size,) if kind == "diag" else (size, size)
        return cls(
            pt.tensor("mu", dtype=dtype, shape=(size,)),
            pt.tensor("factor", dtype=dtype, shape=shape),
        )

    @property
    def params(self) -> list[Tensor]:
        return [self.mu, self.factor]

    def scale(self, z: Tensor) -> Tensor:
        """L z: a direction in x."""
        return z * self.factor if self.factor.ndim == 1 else _rows(z, self.factor.T)

    def pull_back(self, dlogp: Tensor) -> Tensor:
        """L^T g: a gradient in z."""
        return dlogp * self.factor if self.factor.ndim == 1 else _rows(dlogp, self.factor)

    def whiten(
        self, logp_dlogp: Callable[[Tensor], list[Tensor]]
    ) -> Callable[[Tensor], list[Tensor]]:
        """Log-density and gradient as functions of z."""

        def whitened(z: Tensor) -> list[Tensor]:
            logp, dlogp = logp_dlogp(self.mu + self.scale(z))
            return [logp, self.pull_back(dlogp)]

        return whitened

    def whiten_hvp(
        self, hvp: Callable[[Tensor, Tensor], Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Hessian-vector products as functions of z and a direction in z."""

        def whitened(z: Tensor, probes: Tensor) -> Tensor:
            return self.pull_back(hvp(self.mu + self.scale(z), self.scale(probes)))

        return whitened


def _rows(rows: Tensor, matrix: Tensor) -> Tensor:
    """Each row of (..., D) times a matrix: one matrix product whatever the leading axes."""
    if rows.ndim <= 2:
        return pt.dot(rows, matrix)
    flat = pt.dot(rows.reshape((-1, rows.shape[-1])), matrix)
    return flat.reshape(rows.shape, ndim=rows.ndim)
