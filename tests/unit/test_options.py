"""Options: every wrong argument is an OptionError that names it; nothing else ever escapes."""

from numbers import Number
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.acceptance import TargetAccept
from pymc_deer.options import (
    MAX_PROBES,
    MAX_STEPS_PER_DRAW,
    MAX_WINDOW,
    HMCOptions,
    Options,
)
from pymc_deer.path_length import FIRST_LENGTH, MAX_STEPS, PathLength
from pymc_deer.status import DeerError, OptionError

POSITIVE = ("step_size", "curvature", "tol")
COUNTS = ("probes", "max_sweeps", "window", "steps_per_draw")
NOT_POSITIVE = (0.0, -1.0, float("nan"), float("inf"), "0.1", True, 1j, [0.1], 10**400)
NOT_COUNTS = (0, -3, 2.0, float("nan"), True, "many", [8], np.array([8, 16]), 10**5000)

BAD: list[tuple[str, Any]] = [
    *[(name, value) for name in POSITIVE for value in NOT_POSITIVE],
    *[("target_accept", value) for value in (0.0, 1.0, -0.1, 1.5, float("nan"), "0.7", None)],
    *[
        (name, value)
        for name in ("step_size_jitter", "small_steps")
        for value in (1.0, -0.1, float("nan"), "0.1", None)
    ],
    *[(name, value) for name in COUNTS for value in NOT_COUNTS],
    ("probes", None),
    ("probes", "auto"),
    ("probes", MAX_PROBES + 1),
    ("window", MAX_WINDOW + 1),
    ("max_sweeps", MAX_WINDOW + 1),
    ("steps_per_draw", MAX_STEPS_PER_DRAW + 1),
    ("window", None),
    ("steps_per_draw", None),
    *[("backend", value) for value in ("Numba", "c", "", None, 1, ["jax"])],
    *[("jacobian", value) for value in ("full", "Exact", None, 0)],
    *[("metric", value) for value in ("full", "Dense", "")],
    *[("hvp", value) for value in ("grad", 3, np.ones(2))],
]

BAD_PATHS: list[tuple[str, Any]] = [
    *[("n_leapfrog", value) for value in (*NOT_COUNTS, None, MAX_STEPS + 1, 10**400)],
    *[("path_length", value) for value in (*NOT_POSITIVE, "auto")],
]

GOOD_PATHS: list[tuple[str, Any]] = [
    *[("n_leapfrog", value) for value in (1, MAX_STEPS, np.int64(7), "auto")],
    *[("path_length", value) for value in (1, 0.25, np.float32(1.5), None)],
]

GOOD: list[tuple[str, Any]] = [
    ("backend", "jax"),
    ("step_size", 1),
    ("step_size", np.float32(0.5)),
    ("target_accept", 0.574),
    ("target_accept", "auto"),
    ("step_size_jitter", 0.0),
    ("step_size_jitter", 0.3),
    ("small_steps", 0.0),
    ("small_steps", 0.1),
    ("metric", "dense"),
    ("metric", "low_rank"),
    ("metric", np.ones(3)),
    ("jacobian", "exact"),
    ("jacobian", "secant"),
    ("probes", np.int64(2)),
    ("curvature", None),
    ("window", 1),
    ("window", "auto"),
    ("steps_per_draw", np.int32(4)),
    ("tol", 1e-9),
    ("max_sweeps", 10),
    ("noise", "device"),
    ("hvp", lambda x, v: v),
]


def of_both(common: list[tuple[str, Any]], paths: list[tuple[str, Any]]) -> list[Any]:
    """Class, name and value: what both samplers take, and what DeerHMC alone does."""
    cases = [*((kind, *case) for kind in (Options, HMCOptions) for case in common)]
    return [*cases, *((HMCOptions, *case) for case in paths)]


def shown(value: Any) -> str:
    if isinstance(value, int) and value > 10**400:  # too long for Python to write out
        return "huge"
    return value.sampler if isinstance(value, type) else repr(value)[:24]


@pytest.mark.parametrize(("kind", "name", "value"), of_both(BAD, BAD_PATHS), ids=shown)
def test_wrong_value_is_named(kind: type[Options], name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^{kind.sampler}\({name}=.*: {name} must be "):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name", "value"), of_both(GOOD, GOOD_PATHS), ids=shown)
def test_good_value_is_kept(kind: type[Options], name: str, value: Any) -> None:
    """Numbers as Python's own, which neither overflow nor are unknown to a store."""
    kept = getattr(kind(**{name: value}), name)
    if isinstance(value, Number):
        assert kept == value
        assert type(kept) in (int, float)
    else:
        assert kept is value


def test_samplers_are_called_by_their_names() -> None:
    assert [kind.sampler for kind in (Options, HMCOptions)] == ["DeerMALA", "DeerHMC"]


def test_number_of_steps_and_path_length_exclude_each_other() -> None:
    with pytest.raises(OptionError, match=r"^DeerHMC\(n_leapfrog=4\).*'auto' where path_length is"):
        HMCOptions(n_leapfrog=4, path_length=1.5)
    HMCOptions(n_leapfrog="auto", path_length=1.5)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (Options(), PathLength(1)),
        (HMCOptions(n_leapfrog=np.int64(7)), PathLength(7)),
        (HMCOptions(path_length=2), PathLength(None, 2.0)),
        (HMCOptions(), PathLength(None, FIRST_LENGTH, adapts=True)),
    ],
    ids=["MALA", "steps", "length", "auto"],
)
def test_paths_that_options_mean(options: Options, path: PathLength) -> None:
    assert options.path == path


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (Options(), TargetAccept(0.7)),
        (HMCOptions(), TargetAccept(0.8, adapts=True)),
        (HMCOptions(target_accept=np.float32(0.5)), TargetAccept(0.5)),
    ],
    ids=["MALA", "HMC", "given"],
)
def test_acceptance_rates_that_options_mean(options: Options, target: TargetAccept) -> None:
    assert options.target == target


def test_error_is_also_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)
    assert issubclass(OptionError, DeerError)


def test_paths_are_not_options_of_mala() -> None:
    with pytest.raises(
        OptionError, match="DeerMALA has no argument n_leapfrog, path_length, which"
    ):
        Options.from_arguments({"n_leapfrog": 4, "path_length": 1.0})


def test_unknown_argument_is_reported_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"no argument learning_rate; it takes backend, step_"):
        Options.from_arguments({"learning_rate": 0.1, "step_size": 0.1})


def test_options_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Options().window = 8  # type: ignore[misc]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.sampled_from(["auto", "diag", "dense", "numba", "jax", "exact", 10**400, print, object()]),
)
arrays = st.one_of(
    st.lists(scalars, max_size=3),
    st.lists(st.lists(st.floats(), max_size=3), max_size=3),
    st.sampled_from([np.eye(2), np.ones(2), np.array(1.0), np.array(["a", "b"]), np.array([1j])]),
    st.dictionaries(st.text(max_size=2), scalars, max_size=2),
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(vars(HMCOptions()))), value=scalars | arrays)
def test_options_construct_or_raise_option_error(name: str, value: Any) -> None:
    kind = Options if name in vars(Options()) else HMCOptions
    try:
        options = kind(**{name: value})
        factor = options.metric_factor(2)
    except OptionError as error:
        message = str(error)
    else:
        assert factor is None or (np.isfinite(factor).all() and len(factor) == 2)
        fewest, most = options.path.lengths(0.3, learning=False)
        assert 1 <= fewest <= most <= MAX_STEPS
        return
    assert message.startswith(f"{kind.sampler}({name}=")


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        (np.ones(2), r"of shape \(3,\) or \(3, 3\)"),
        (np.ones((3, 2)), r"of shape \(3,\) or \(3, 3\)"),
        (np.ones((1, 3)), r"of shape \(3,\) or \(3, 3\)"),
        (np.array(1.0), r"of shape \(3,\) or \(3, 3\)"),
        (None, r"metric must be "),
        ([[1.0], [1.0, 2.0]], r"metric must be "),
        ({"x": 1.0}, r"metric must be "),
        (np.array(["a", "b", "c"]), r"metric must be "),
        (np.array([1j, 1j, 1j]), r"metric must be "),
        (np.array([1.0, np.nan, 1.0]), "must be finite"),
        (np.diag([1.0, np.inf, 1.0]), "must be finite"),
        (np.array([1.0, 0.0, 1.0]), "must be positive"),
        (np.array([1.0, -1.0, 1.0]), "must be positive"),
        (np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]), "symmetric positive definite"),
        (np.diag([1.0, -1.0, 1.0]), "symmetric positive definite"),
        (np.ones((3, 3)) - 0.5 * np.eye(3), "symmetric positive definite"),
    ],
)
def test_wrong_metric_array(metric: Any, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        Options(metric=metric).metric_factor(3)


def test_metric_vector_holds_variances() -> None:
    factor = Options(metric=np.array([4.0, 9.0])).metric_factor(2)
    assert_array_equal(factor, [2.0, 3.0])


def test_metric_matrix_is_factored() -> None:
    root = np.random.default_rng(0).normal(size=(4, 4))
    covariance = root @ root.T + np.eye(4)
    factor = Options(metric=covariance).metric_factor(4)
    assert factor is not None
    assert_array_equal(factor, np.tril(factor))
    assert_allclose(factor @ factor.T, covariance, rtol=1e-12)


def test_metric_by_name_has_no_factor() -> None:
    assert Options(metric="dense").metric_factor(4) is None
