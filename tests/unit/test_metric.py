"""The metric: numeric and symbolic whitening are each other's mirror."""

from typing import Any

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.metric import KINDS, Metric, MetricKind, SymbolicMetric, identity_metric

SIZE = 3


def some_metric(kind: MetricKind) -> Metric:
    rng = np.random.default_rng(7)
    scales = rng.uniform(0.1, 10.0, SIZE)
    if kind == "low_rank":
        vectors, _ = np.linalg.qr(rng.normal(size=(SIZE, 2)))
        return Metric(rng.normal(size=SIZE), scales, vectors, np.array([3.0, -0.7]))
    factor = scales if kind == "diag" else np.tril(rng.normal(size=(SIZE, SIZE))) + np.diag(scales)
    return Metric(rng.normal(size=SIZE), factor)


def matrix(metric: Metric) -> np.ndarray:
    """L as a matrix."""
    if metric.kind == "low_rank":
        vectors, weights = metric.vectors, metric.weights
        return np.diag(metric.factor) @ (np.eye(SIZE) + vectors @ np.diag(weights) @ vectors.T)
    return np.diag(metric.factor) if metric.kind == "diag" else metric.factor


@pytest.mark.parametrize("kind", KINDS)
def test_to_z_inverts_to_x(kind: MetricKind) -> None:
    metric = some_metric(kind)
    z = np.random.default_rng(1).normal(size=SIZE)
    assert metric.kind == kind
    assert_allclose(metric.to_x(z), metric.mu + matrix(metric) @ z, rtol=1e-13)
    assert_allclose(metric.to_z(metric.to_x(z)), z, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_unwhitened_row_by_row(kind: MetricKind) -> None:
    metric = some_metric(kind)
    z = np.random.default_rng(1).normal(size=(5, SIZE))
    assert_allclose(metric.to_x(z), [metric.to_x(row) for row in z], rtol=1e-13)


@pytest.mark.parametrize("rank", [None, 0, 12])
@pytest.mark.parametrize("size", [3, 100, 303])
def test_a_row_is_the_same_among_any_others(size: int, rank: int | None) -> None:
    rng = np.random.default_rng(size)
    z, mu = rng.normal(size=(65, size)), rng.normal(size=size)
    if rank is None:
        metric = Metric(mu, np.tril(rng.normal(size=(size, size))))
    else:
        vectors, weights = rng.normal(size=(size, rank)), rng.normal(size=rank)
        metric = Metric(mu, rng.uniform(1, 2, size), vectors, weights)
    x = metric.to_x_by_row(z)
    assert_allclose(x, metric.to_x(z), rtol=1e-9, atol=1e-9)
    for first, last in ((0, 1), (64, 65), (5, 12), (1, 64)):
        assert_array_equal(metric.to_x_by_row(z[first:last]), x[first:last])
        assert_array_equal(metric.to_x_by_row(z[first:last][::2]), x[first:last][::2])


@pytest.mark.parametrize("kind", KINDS)
def test_identity_does_nothing(kind: MetricKind) -> None:
    z = np.random.default_rng(1).normal(size=SIZE)
    metric = identity_metric(kind, SIZE)
    assert metric.kind == kind
    assert_array_equal(metric.to_x(z), z)
    assert_array_equal(metric.to_z(z), z)


@pytest.mark.parametrize("kind", KINDS)
def test_scales_are_those_of_the_covariance(kind: MetricKind) -> None:
    metric = some_metric(kind)
    covariance = matrix(metric) @ matrix(metric).T
    assert_allclose(metric.scales, np.sqrt(np.diag(covariance)), rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_astype(kind: MetricKind) -> None:
    metric = some_metric(kind).astype("float32")
    assert {array.dtype.name for array in metric.arrays} == {"float32"}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_go_back_to_x(kind: MetricKind) -> None:
    metric = some_metric(kind)
    dlogp = np.random.default_rng(1).normal(size=(5, SIZE))
    assert_allclose(metric.dlogp_to_x(metric.pull_back(dlogp)), dlogp, rtol=1e-11)
    assert_allclose(metric.pull_back(dlogp), dlogp @ matrix(metric), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lead", [(), (4,), (4, 2)], ids=["state", "batch", "probes"])
def test_symbolic_maps_follow_the_matrix(kind: MetricKind, lead: tuple[int, ...]) -> None:
    metric, symbolic = some_metric(kind), SymbolicMetric.of(kind, SIZE, "float64")
    v = pt.tensor("v", dtype="float64", shape=(*lead, SIZE))
    maps = pytensor.function(
        [v, *symbolic.params],
        [symbolic.scale(v), symbolic.pull_back(v)],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    value = np.random.default_rng(2).normal(size=(*lead, SIZE))
    scaled, pulled = maps(value, *metric.arrays)
    assert scaled.shape == pulled.shape == value.shape
    assert_allclose(scaled, value @ matrix(metric).T, rtol=1e-12)
    assert_allclose(pulled, value @ matrix(metric), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_whitened_gradient_is_the_gradient_of_the_whitened_density(kind: MetricKind) -> None:
    metric, symbolic = some_metric(kind), SymbolicMetric.of(kind, SIZE, "float64")
    z = pt.tensor("z", dtype="float64", shape=(SIZE,))
    curvature = np.array([1.0, 2.0, 3.0])

    def density(x: pt.TensorVariable) -> list[pt.TensorVariable]:
        return [-pt.sum(curvature * x**2) / 2 + x[0] * x[1], -curvature * x + swapped(x)]

    def swapped(x: pt.TensorVariable) -> Any:
        return pt.stack([x[1], x[0], pt.zeros(())])

    logp, dlogp = symbolic.whiten(GradientFirst.of_both(density)).both(z)
    whitened = pytensor.function(
        [z, *symbolic.params], [dlogp, pytensor.grad(logp, z)], mode="FAST_COMPILE"
    )
    ours, autodiff = whitened(np.array([0.3, -1.0, 2.0]), *metric.arrays)
    assert_allclose(ours, autodiff, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_whitened_hessian_is_congruent(kind: MetricKind) -> None:
    metric, symbolic = some_metric(kind), SymbolicMetric.of(kind, SIZE, "float64")
    hessian = np.array([[-2.0, 0.5, 0.0], [0.5, -1.0, 0.2], [0.0, 0.2, -3.0]])
    z = pt.tensor("z", dtype="float64", shape=(SIZE,))
    probes = pt.tensor("probes", dtype="float64", shape=(SIZE, SIZE))
    product = symbolic.whiten_hvp(lambda x, v: pt.dot(v, hessian))(z, probes)
    whitened = pytensor.function(
        [z, probes, *symbolic.params], product, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    found = whitened(np.zeros(SIZE), np.eye(SIZE), *metric.arrays)
    assert_allclose(found, matrix(metric).T @ hessian @ matrix(metric), rtol=1e-12)


def test_probes_pass_a_low_rank_metric_without_directions() -> None:
    metric = identity_metric("low_rank", 3)
    probes = np.random.default_rng(0).normal(size=(4, 2, 3))
    np.testing.assert_allclose(metric.scale(probes), probes)
    np.testing.assert_allclose(metric.pull_back(probes), probes)


def test_a_large_matrix_is_not_copied_for_a_single_state() -> None:
    size = 80
    symbolic = SymbolicMetric.of("dense", size, "float64")
    z, dlogp = pt.vector("z", shape=(size,)), pt.vector("dlogp", shape=(size,))
    outputs = [symbolic.scale(z), symbolic.pull_back(dlogp)]
    function: Any = pytensor.function([symbolic.factor, z, dlogp], outputs, mode="JAX")
    rng = np.random.default_rng(0)
    factor, states = np.tril(rng.normal(size=(size, size))), rng.normal(size=(2, size))
    moved, pulled = function(factor, *states)
    assert_allclose(moved, factor @ states[0], rtol=1e-12)
    assert_allclose(pulled, factor.T @ states[1], rtol=1e-12)
    with jax.enable_x64(True):
        compiled = jax.jit(function.vm.jit_fn).lower(factor, *states).compile().as_text()
    assert f"f64[{size},{size}]" in compiled
    assert "transpose(" not in compiled
