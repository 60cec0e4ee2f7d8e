"""A warm-up window: autocorrelation by batch means, and the same moments however it is cut."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_deer.metric import KINDS, MetricKind, identity_metric
from pymc_deer.warmup_window import WarmupWindow
from tests.support import autoregressive, trajectory

SIZE = 3


def filled(z: np.ndarray, stretches: int, pieces: int = 1, kind: MetricKind = "diag"):
    """A window that has seen a standard normal's draws z in so many stretches."""
    window = WarmupWindow()
    for stretch in np.split(z, stretches):
        for rows in np.array_split(stretch, pieces):
            metric = identity_metric(kind, z.shape[1])
            window.add(trajectory(rows, -rows), metric)
        window.end_stretch()
    return window


@pytest.mark.parametrize("phi", [0.6, 0.9, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_autocorrelation_time_of_the_slowest_coordinate(phi: float, kind: MetricKind) -> None:
    n = 20_000
    slow, fast = autoregressive(phi, n), np.random.default_rng(1).normal(size=n)
    time = filled(np.column_stack([fast, slow]), 50, kind=kind).autocorrelation_time()
    truth = (1 + phi) / (1 - phi)
    assert time is not None
    assert truth / 2 <= time <= truth * 2


def test_one_stretch_says_nothing_about_correlation() -> None:
    assert WarmupWindow().autocorrelation_time() is None
    assert filled(np.zeros((10, SIZE)), 1).autocorrelation_time() is None
    assert filled(np.zeros((10, SIZE)), 2).autocorrelation_time() == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_a_stretch_changes_nothing(kind: MetricKind) -> None:
    z = np.random.default_rng(2).normal(size=(400, SIZE)) * [0.1, 1.0, 10.0]
    start = identity_metric(kind, SIZE)
    whole, cut = filled(z, 4, kind=kind), filled(z, 4, pieces=7, kind=kind)
    for ours, theirs in zip(
        whole.estimate(start, 1.5).arrays, cut.estimate(start, 1.5).arrays, strict=True
    ):
        assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-8, atol=1e-10)
    assert whole.autocorrelation_time() == pytest.approx(cut.autocorrelation_time())
