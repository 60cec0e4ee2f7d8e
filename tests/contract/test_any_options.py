"""Any options give a step that works, or an error of ours; nothing else ever escapes."""

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymc_deer import DeerHMC
from pymc_deer.jacobian import RULES
from pymc_deer.metric import KINDS
from pymc_deer.options import MAX_PROBES, MAX_WINDOW
from pymc_deer.path_length import MAX_STEPS
from pymc_deer.status import DeerError, OptionError
from pymc_deer.step import DeerStep
from tests.support import SAMPLERS

SIZE = 2


def model() -> pm.Model:
    with pm.Model() as made:
        pm.Normal("x", 0.0, [1.0, 3.0])
    return made


VALID: dict[str, st.SearchStrategy[Any]] = {
    "step_size": st.none() | st.floats(1e-300, 1e300),
    "step_size_jitter": st.floats(0.0, 1.0, exclude_max=True),
    "small_steps": st.floats(0.0, 1.0, exclude_max=True),
    "target_accept": st.just("auto") | st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
    "metric": st.sampled_from(
        [
            "auto",
            *KINDS,
            np.ones(SIZE),
            np.eye(SIZE),
            [1e-300, 1e300],
            np.array([[2.0, 1.0], [1.0, 1.0]]),
        ]
    ),
    "jacobian": st.sampled_from(["auto", *RULES]),
    "probes": st.integers(1, 3) | st.just(MAX_PROBES),
    "curvature": st.none() | st.floats(1e-300, 1e300),
    "steps_per_draw": st.just("auto") | st.integers(1, 70),
    "tol": st.none() | st.floats(1e-300, 1e300),
    "max_sweeps": st.none() | st.integers(1, 40) | st.just(MAX_WINDOW),
    "noise": st.sampled_from(["auto", "host"]),
    "hvp": st.sampled_from([None, lambda x, v: -v, lambda x, v: v * float("nan")]),
}
WINDOWS = st.integers(1, 20) | st.just(300)
"""Always given: to time all widths takes seconds, and ``test_calibration`` looks at that."""

PATHS: dict[str, st.SearchStrategy[Any]] = {
    "n_leapfrog": st.just("auto") | st.integers(1, 20) | st.just(MAX_STEPS),
    "path_length": st.none() | st.floats(1e-300, 1e300),
}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
    st.sampled_from(["auto", 10**5000, print, object(), np.ones(3), np.array("a"), np.nan, int]),
)


def combinations(
    sampler: type[DeerStep], values: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[tuple[type[DeerStep], dict[str, Any]]]:
    some = st.fixed_dictionaries({"window": WINDOWS}, optional=values)
    return st.tuples(st.just(sampler), some.map(without_rate_of_fixed))


def without_rate_of_fixed(options: dict[str, Any]) -> dict[str, Any]:
    """Without an acceptance rate for a step size that is given, which is always refused."""
    is_fixed = isinstance(options.get("step_size"), float)
    return {n: v for n, v in options.items() if not (is_fixed and n == "target_accept")}


def of_both(make: Any) -> st.SearchStrategy[tuple[type[DeerStep], dict[str, Any]]]:
    """Combinations of options for either sampler, each value as `make` changes its strategy."""
    return st.one_of(
        *(
            combinations(
                sampler,
                {
                    name: make(values)
                    for name, values in (VALID | (PATHS if sampler is DeerHMC else {})).items()
                },
            )
            for sampler in SAMPLERS
        )
    )


def works_or_is_refused(sampler: type[DeerStep], arguments: dict[str, Any]) -> bool:
    """Whether a step gives finite draws, in warm-up and after; else it is one of our errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with model() as here:
                step = sampler(backend="jax", **arguments)  # type: ignore[call-arg]
        except DeerError:
            return False
        step.setup_chain(np.random.default_rng(0), 12, 4)
        point = here.initial_point()
        for i in range(16):
            if i == 12:
                step.stop_tuning()
            point, _ = step.step(point)
            assert np.isfinite(point["x"]).all()
    return True


HERE = model()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(case=of_both(lambda values: values | ANYTHING), wrong=ANYTHING)
def test_wrong_values_are_refused_before_anything_is_compiled(case, wrong) -> None:
    sampler, arguments = case
    # What is certainly wrong is looked at last, and keeps the rest from being compiled.
    last = "path_length" if sampler is DeerHMC else "hvp"
    with HERE, pytest.raises(OptionError):
        sampler(**{**arguments, last: (wrong,)})


FEW, MANY = 3, 12
COMBINATIONS = of_both(lambda values: values)
SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


def test_combinations_work_or_are_refused() -> None:
    assert how_many_work(FEW) > FEW / 2


@pytest.mark.slow
def test_many_combinations_work_or_are_refused() -> None:
    assert how_many_work(MANY) > MANY / 2


def how_many_work(n: int) -> int:
    """Of n combinations of valid values; the others are refused for what they are together."""
    works = []

    @settings(max_examples=n, **SETTINGS)
    @given(case=COMBINATIONS)
    def one_of_them(case) -> None:
        works.append(works_or_is_refused(*case))

    one_of_them()
    return sum(works)
