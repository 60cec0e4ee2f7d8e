"""Single precision: log-densities are summed up so that their differences keep their digits."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.basic import equal_computations
from pytensor.graph.traversal import ancestors
from scipy.stats import norm

from pymc_deer import density
from pymc_deer.density import build_density
from pymc_deer.examples import eight_schools, radon
from pymc_deer.jacobian import RULES, Rule
from pymc_deer.precision import WIDE, added_in_float64, in_precision
from pymc_deer.sweep import Kernel, SweepSpec, build_sequential, build_sweep
from tests.one_million import SPREAD, observations, one_million


def written_by_hand() -> pm.Model:
    """The same density as a user may write it: under a factor, a bound and a sum of rows."""
    y = (observations() / SPREAD).reshape(1000, -1)
    log_spread = np.float32(np.log(SPREAD) + 0.5 * np.log(2 * np.pi))
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        terms = (y - np.float32(10.0 / SPREAD) * x) ** 2 + 2 * log_spread
        rows = pt.sum(terms, axis=1)
        pm.Potential("y", pt.switch(x < 10.0, -0.5 * pt.sum(rows), -np.inf))
    return model


def error_of_difference(build: Callable[[], pm.Model]) -> float:
    """How wrong the logp of x = 0.75 less that of x = 0.25 is."""
    with pytensor.config.change_flags(floatX="float32"):
        model = build()
        here = build_density(model)
        logp = pytensor.function([here.x, *here.params], here.logp, mode="FAST_COMPILE")
        params = here.param_values(model.initial_point())
    assert here.dlogp.type.dtype == "float32"
    high, low = (float(logp(np.array([x], "float32"), *params)) for x in (0.75, 0.25))
    assert abs(low) > 1e7
    y = observations().astype(float)
    exact = [norm.logpdf(y, 10.0 * x, SPREAD).sum() + norm.logpdf(x) for x in (0.75, 0.25)]
    return abs(high - low - (exact[0] - exact[1]))


MODELS = pytest.mark.parametrize("build", [one_million, written_by_hand])


@MODELS
def test_differences_of_large_log_densities_keep_their_digits(build) -> None:
    # A million terms of 10, each rounded to 24 bits.
    assert error_of_difference(build) < 3e-3


@MODELS
def test_sums_in_single_precision_would_not(build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "added_in_float64", lambda logp: logp.astype(WIDE))
    assert error_of_difference(build) > 0.05


def test_a_recursion_of_scalars_is_walked_once() -> None:
    """Logistic growth: each step reads the one before it three times."""
    n = start = pt.dscalar("n")
    logp: Any = 0.0
    for _ in range(40):
        n = n + 0.5 * n * (1 - n / 3)
        logp = logp - n
    added = added_in_float64(logp)
    assert len(list(ancestors([added]))) < 2 * len(list(ancestors([logp])))
    assert added.eval({start: 1.0}) == logp.eval({start: 1.0})


def test_double_precision_stays_as_it_is() -> None:
    logp = build_density(radon()).logp
    assert equal_computations([added_in_float64(logp)], [logp])


def as_float(condition: Any) -> Any:
    return pt.cast(condition, pytensor.config.floatX)


def flags_of_data() -> Any:
    first, second = (pm.Data(name, np.array(True)) for name in ("f", "g"))
    return as_float(first) + as_float(second)


INDICATORS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: -2.0 * (as_float(a > 0) + as_float(b > 0)),
    "difference": lambda a, b: as_float(a > 0) - as_float(b > 0),
    "product": lambda a, b: as_float(a > 0) * as_float(b > 0),
    "negative": lambda a, b: -as_float(a > 0) - as_float(b > 0),
    "quotient": lambda a, b: -(a**2) / (as_float(a > -100) + as_float(b > -200)),
    "choice": lambda a, b: pt.switch(a > b, as_float(a > 0), as_float(b > 0)) + as_float(b > 0),
    "choice by a number": lambda a, b: pt.switch(as_float(a > 0) + as_float(b > 0), a, b),
    "any and all": lambda a, b: as_float(pt.any([a > -5, b > 9])) + as_float(pt.all([a > -9])),
    "data": lambda a, _: -flags_of_data() * a**2,
}
"""Terms of logp by how they count the signs of two scalars."""


@pytest.mark.parametrize("name", INDICATORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_indicators_are_numbers(name: str, dtype: str) -> None:
    """Of their type the sum is an or, and the difference nothing at all."""
    with pytensor.config.change_flags(floatX=dtype):
        with pm.Model() as model:
            a, b = pm.Normal("a"), pm.Normal("b")
            pm.Potential("p", INDICATORS[name](a, b))
        here = build_density(model)
        logp: Any = pytensor.function([here.x, *here.params], here.logp, mode="FAST_COMPILE")
        expected = model.compile_logp(mode="FAST_COMPILE")
        params = here.param_values(model.initial_point())
        for point in ({"a": 1.0, "b": 0.5}, {"a": -1.0, "b": 2.0}, {"a": -1.0, "b": -0.5}):
            x = np.array([*point.values()], dtype)
            assert_allclose(logp(x, *params), expected(point), rtol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kernel", ["mala", "hmc"])
def test_constants_have_the_type_of_the_model(kernel: Kernel, rule: Rule) -> None:
    """Also where PyTensor is set to another one when the model is sampled."""
    with pytensor.config.change_flags(floatX="float32"):
        here = build_density(eight_schools())
    assert pytensor.config.floatX == "float64"
    spec = SweepSpec("dense", rule, kernel=kernel)
    outputs = {
        "step": build_sequential(here, spec).outputs,
        "sweep": build_sweep(here, spec, "vectorized", width=8).outputs,
    }
    for found in outputs.values():
        vectors = [v.type.dtype for v in found if v.type.shape[-1:] == (here.size,)]
        assert len(vectors) >= 2
        assert set(vectors) == {"float32"}
    assert pytensor.config.floatX == "float64"


def test_types_are_set_by_one_thread_at_a_time() -> None:
    """And what was set before is set behind them, whichever ends first."""
    inside, may_end = Event(), Event()
    seen: list[str] = []

    def first() -> None:
        with in_precision("float32"):
            inside.set()
            may_end.wait()
            seen.append(pytensor.config.floatX)

    def second() -> None:
        with in_precision("float64"):
            seen.append(pytensor.config.floatX)

    threads = [Thread(target=first), Thread(target=second)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert seen == ["float32", "float64"]
    assert pytensor.config.floatX == "float64"
