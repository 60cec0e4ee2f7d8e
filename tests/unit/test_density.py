"""The density of the raveled vector is the model's own, term by term, gradient by gradient."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.exceptions import ImputationWarning
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedIncSubtensor
from xarray import DataArray

from pymc_deer.density import Density, build_density
from pymc_deer.status import ModelError
from tests.support import Opaque
from tests.zoo import hierarchical_logistic

MODE = "FAST_COMPILE"
"""Runs graphs as they are: these tests are about the graph, not about a backend."""

REWRITTEN = Mode("py", "fast_run")
"""Runs graphs after the rewrites that backends run, some of which vectorised graphs rely on."""

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(40, 3))
GROUPS = RNG.integers(0, 4, 100)


def transforms() -> pm.Model:
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 2.0)
        p = pm.Beta("p", 2.0, 3.0, shape=2)
        weights = pm.Dirichlet("weights", np.ones(3))
        low = pm.Uniform("low", -1.0, 4.0)
        pm.Normal("y", low + p.sum() + weights[0], sigma, observed=np.array([0.1, 0.4]))
    return model


def potential() -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x", shape=(2, 2))
        pm.Potential("soft_wall", -pt.sum(x**4))
        pm.Deterministic("total", x.sum())
    return model


def regression() -> pm.Model:
    """`pm.Data` in both roles, and enough of it to become inputs of the graph."""
    with pm.Model() as model:
        features = pm.Data("features", FEATURES)
        outcome = pm.Data("outcome", FEATURES @ [1.0, -1.0, 0.5])
        beta = pm.StudentT("beta", 4.0, shape=3)
        sigma = pm.HalfCauchy("sigma", 1.0)
        pm.Normal("y", pt.dot(features, beta), sigma, observed=outcome)
    return model


def imputed() -> pm.Model:
    values = np.ma.masked_invalid([1.0, np.nan, 0.3, np.nan])
    with pm.Model() as model:
        mu = pm.Normal("mu")
        with pytest.warns(ImputationWarning, match="missing values"):
            pm.Normal("y", mu, 1.0, observed=values)
    return model


def named_dimensions() -> pm.Model:
    with pm.Model(coords={"row": range(3), "column": range(4)}) as model:
        model.add_coord("group", range(4))
        mu = pm.Normal("mu", dims=("row", "column"))
        effect = pm.ZeroSumNormal("effect", 2.0, dims="group")
        pm.Deterministic("mean", mu + effect, dims=("row", "column"))
        pm.Normal("y", mu + effect, 1.0, observed=np.ones((3, 4)), dims=("row", "column"))
    return model


def named_axes() -> pm.Model:
    rows = DataArray(np.linspace(-1.0, 1.0, 12).reshape(3, 4), dims=("row", "column"))
    with pm.Model(coords={"row": range(3), "column": range(4)}) as model:
        data = pmd.Data("data", rows.values, dims=("row", "column"))
        beta = pmd.Normal("beta", dims="column")
        sigma = pmd.HalfNormal("sigma", 2.0)
        effect = pmd.ZeroSumNormal("effect", core_dims="row", dims=("row",))
        mean = pmd.Deterministic("mean", effect + (data * beta).sum("column"))
        plain = pm.Normal("plain", shape=2)
        pmd.Normal("y", mean + plain.sum(), sigma, observed=rows.isel(column=0))
    return model


def indexed() -> pm.Model:
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0.0, 1.0, shape=4)
        pm.Poisson("y", pt.exp(alpha[GROUPS]), observed=GROUPS + 1)
    return model


def observed_afterwards() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        tau = pm.Exponential("tau", 1.0)
        pm.Normal("y", mu, tau, shape=3)
    return pm.observe(model, {"y": np.array([0.5, 1.0, 2.0])})


def intervened() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        tau = pm.Exponential("tau", 1.0)
        pm.Normal("y", mu, tau, observed=np.ones(3))
    return pm.do(model, {"tau": 2.0})


MODELS: tuple[Callable[[], pm.Model], ...] = (
    transforms,
    potential,
    regression,
    imputed,
    named_dimensions,
    named_axes,
    indexed,
    observed_afterwards,
    intervened,
)

Compiled = tuple[pm.Model, Density, Callable[..., Any]]


@cache
def compiled(make: Callable[[], pm.Model]) -> Compiled:
    model = make()
    density = build_density(model)
    function = pytensor.function(
        [density.x, *density.params], [density.logp, density.dlogp], mode=MODE
    )
    return model, density, function


def points(model: pm.Model, density: Density, n: int) -> list[tuple[np.ndarray, dict]]:
    """Raveled vectors with the same values as a point of the model."""
    rng = np.random.default_rng(1)
    start = model.initial_point()
    x = density.layout.ravel(start, density.dtype)
    rows = x + rng.normal(0.0, 0.7, (n, len(x)))
    return [(row, {**start, **density.layout.unravel(row)}) for row in rows]


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_agrees_with_the_model(make: Callable[[], pm.Model]) -> None:
    model, density, function = compiled(make)
    expected = model.compile_fn([model.logp(), model.dlogp()], mode=MODE)
    for x, point in points(model, density, 4):
        ours, gradient = function(x, *density.param_values(point))
        logp, dlogp = expected(point)
        assert_allclose(ours, logp, rtol=1e-10)
        assert_allclose(gradient, dlogp, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_batch_is_row_by_row(make: Callable[[], pm.Model]) -> None:
    model, density, function = compiled(make)
    xs = pt.tensor("xs", dtype=density.dtype, shape=(3, density.size))
    batch = pytensor.function([xs, *density.params], density.batch.both(xs), mode=REWRITTEN)
    rows = np.array([x for x, _ in points(model, density, 3)])
    params = density.param_values(model.initial_point())
    logp, dlogp = batch(rows, *params)
    expected = [function(row, *params) for row in rows]
    assert_allclose(logp, [e[0] for e in expected], rtol=1e-12)
    assert_allclose(dlogp, [e[1] for e in expected], rtol=1e-10, atol=1e-12)


# The others' products cannot be vectorised by PyTensor; solvers then map the single product.
VECTORIZED_HVP = (regression, indexed)


@pytest.mark.parametrize(
    "make", [transforms, potential, named_axes, *VECTORIZED_HVP], ids=lambda m: m.__name__
)
def test_hessian_products(make: Callable[[], pm.Model]) -> None:
    """Single and batched products agree with differences of the gradient."""
    model, density, function = compiled(make)
    n_probes = 2
    probes = pt.tensor("probes", dtype=density.dtype, shape=(n_probes, density.size))
    single = pytensor.function(
        [density.x, probes, *density.params],
        density.single_hvp(density.x, probes),
        mode=MODE,
        on_unused_input="ignore",
    )
    rng = np.random.default_rng(2)
    rows = np.array([x for x, _ in points(model, density, 3)])
    directions = rng.choice([-1.0, 1.0], (3, n_probes, density.size))
    params = density.param_values(model.initial_point())
    h = 1e-5
    expected = [
        [
            (function(x + h * v, *params)[1] - function(x - h * v, *params)[1]) / (2 * h)
            for v in probes_of_row
        ]
        for x, probes_of_row in zip(rows, directions, strict=True)
    ]
    if make in VECTORIZED_HVP:
        xs = pt.tensor("xs", dtype=density.dtype, shape=(3, density.size))
        many = pt.tensor("many", dtype=density.dtype, shape=(3, n_probes, density.size))
        batch = pytensor.function(
            [xs, many, *density.params],
            density.batch_hvp(xs, many),
            mode=REWRITTEN,
            on_unused_input="ignore",
        )
        assert_allclose(batch(rows, directions, *params), expected, rtol=1e-5, atol=1e-6)
    for x, vs, result in zip(rows, directions, expected, strict=True):
        assert_allclose(single(x, vs, *params), result, rtol=1e-5, atol=1e-6)


def test_names_that_mean_dtypes_are_names() -> None:
    with pm.Model() as model:
        half, long = pm.Normal("half"), pm.Data("long", np.array([0.5, 1.0]))
        pm.Normal("double", half * long, 1.0, observed=[1.0, 2.0])
    density = build_density(model)
    assert density.layout.names == ("half",)
    assert [p.name for p in density.params] == ["long"]


def test_shared_probes_serve_every_row() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", shape=4)
        pm.Potential("soft_wall", -pt.sum(x**4))
    density = build_density(model)
    xs = pt.tensor("xs", dtype="float64", shape=(3, 4))
    probes = pt.tensor("probes", dtype="float64", shape=(1, 4, 4))
    product = pytensor.function([xs, probes], density.batch_hvp(xs, probes), mode=REWRITTEN)
    rows = np.arange(12.0).reshape(3, 4)
    # -sum(x^2)/2 - sum(x^4): the Hessian is diagonal.
    expected = [np.diag(-1 - 12 * row**2) for row in rows]
    assert_allclose(product(rows, np.eye(4)[None]), expected, rtol=1e-12, atol=1e-12)


def test_user_hvp_is_used() -> None:
    density = build_density(potential(), hvp=lambda x, v: 1000.0 * v + x)
    probes = pt.tensor("probes", dtype="float64", shape=(1, 4))
    product = pytensor.function(
        [density.x, probes], density.single_hvp(density.x, probes), mode=MODE
    )
    assert_allclose(product(np.ones(4), np.ones((1, 4))), np.full((1, 4), 1001.0))


def test_layout_is_the_order_of_the_value_variables() -> None:
    model, density, _ = compiled(transforms)
    assert density.layout.names == tuple(v.name for v in model.value_vars)
    # Simplex of 3 is 2 numbers when unconstrained.
    assert density.layout.shapes == ((), (2,), (2,), ())
    assert density.size == 6
    point = model.initial_point()
    x = density.layout.ravel(point, "float64")
    back = density.layout.unravel(x)
    assert list(back) == list(point)
    for name, value in point.items():
        assert_array_equal(back[name], value)
        assert back[name].dtype == value.dtype


def test_subset_is_conditioned_on_the_rest() -> None:
    model = regression()
    beta = model.rvs_to_values[model["beta"]]
    density = build_density(model, [beta])
    assert density.layout.names == ("beta",)
    function = pytensor.function([density.x, *density.params], density.logp, mode=MODE)
    logp = model.compile_logp(mode=MODE)
    for log_sigma in (-1.0, 2.0):
        point = {"beta": np.array([0.1, 0.2, 0.3]), "sigma_log__": np.array(log_sigma)}
        assert_allclose(
            function(point["beta"], *density.param_values(point)), logp(point), rtol=1e-10
        )


def test_changed_data_is_honoured() -> None:
    model = regression()
    density = build_density(model)
    function = pytensor.function([density.x, *density.params], density.logp, mode=MODE)
    x, point = points(model, density, 1)[0]
    before = function(x, *density.param_values(point))
    new = {"features": 2 * FEATURES + 1, "outcome": np.zeros(40)}
    pm.set_data(new, model=model)
    after = function(x, *density.param_values(point))
    assert after != pytest.approx(before)
    assert_allclose(after, model.compile_logp(mode=MODE)(point), rtol=1e-10)


def test_data_of_another_shape_is_an_error() -> None:
    model = regression()
    density = build_density(model)
    pm.set_data({"features": FEATURES[:7]}, model=model)
    with pytest.raises(ModelError, match=r"features changed from shape \(40, 3\) to \(7, 3\)"):
        density.param_values(model.initial_point())


def test_large_constants_are_inputs_but_indices_are_not() -> None:
    model, density, _ = compiled(indexed)
    values = density.param_values(model.initial_point())
    assert any(v.shape == (100,) for v in values)
    constants = [
        c.data
        for c in pytensor.graph.traversal.ancestors([density.logp, density.dlogp])
        if isinstance(c, pytensor.graph.basic.Constant) and np.size(c.data) >= 64
    ]
    assert all(c.dtype.kind != "f" for c in constants)
    assert any(np.array_equal(c, GROUPS) for c in constants)


def test_float32_model_gives_a_float32_density() -> None:
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            sigma = pm.HalfNormal("sigma", 2.0)
            pm.Normal("x", 1.5, sigma, shape=2)
        density = build_density(model)
        assert density.dtype == density.dlogp.dtype == "float32"
        # Summed up so that its differences keep their digits.
        assert density.logp.dtype == "float64"
        function = pytensor.function([density.x], [density.logp, density.dlogp], mode=MODE)
        point = model.initial_point()
        x = density.layout.ravel(point, density.dtype)
        assert x.dtype == "float32"
        logp, dlogp = function(x)
        assert (logp.dtype, dlogp.dtype) == ("float64", "float32")
        assert_allclose(logp, model.compile_logp(mode=MODE)(point), rtol=1e-5)


def test_logp_without_gradient_names_the_variable() -> None:
    with pm.Model() as model:
        pm.Normal("fine")
        rough = pm.HalfNormal("rough")
        pm.Potential("blackbox", Opaque()(rough))
    with pytest.raises(ModelError, match=r"^rough: logp has no gradient .*Opaque.*pm\.Slice"):
        build_density(model)


def test_logp_that_ignores_a_variable_names_it() -> None:
    with pm.Model() as model:
        pm.Normal("x")
        pm.Flat("idle")
    with pytest.raises(ModelError, match=r"^idle: logp does not depend on it"):
        build_density(model)


def test_discrete_variables_are_named() -> None:
    with pm.Model() as model:
        p = pm.Beta("p", 1.0, 1.0)
        pm.Binomial("count", 5, p)
        pm.Bernoulli("flag", p)
    with pytest.raises(ModelError, match=r"^count, flag: discrete variables"):
        build_density(model)


def test_no_variables() -> None:
    with pm.Model() as model:
        pm.Normal("y", observed=1.0)
    with pytest.raises(ModelError, match="no free variables"):
        build_density(model)


def test_a_state_outside_the_support_leaves_its_batch_alone() -> None:
    """A parameter check speaks for its own state only, in whatever batch the state is."""
    with pm.Model() as model:
        sigma = pm.Normal("sigma", 1.0, 1.0)
        pm.Normal("y", 0.0, sigma, observed=np.array([0.3, -1.2]))
    density = build_density(model)
    states = np.array([[1.0], [-1.0], [2.0]])
    x = pt.matrix("x", shape=(None, 1))
    batch = pytensor.function([x, *density.params], density.batch.both(x), mode="FAST_COMPILE")
    params = density.param_values(model.initial_point())
    logp, dlogp = batch(states, *params)
    alone = [batch(state[None], *params) for state in states]
    assert np.isneginf(logp[1])
    assert np.isfinite(logp[[0, 2]]).all()
    np.testing.assert_allclose(logp, [value[0] for value, _ in alone])
    np.testing.assert_allclose(dlogp[[0, 2]], [alone[i][1][0] for i in (0, 2)])


def test_sums_by_group_that_gradients_share_are_computed_once() -> None:
    """Of one column: its axis comes and goes in the gradients, each in another place."""
    density = build_density(hierarchical_logistic(n_groups=7, n_slopes=1, n_observations=30))
    ops = [v.owner.op for v in ancestors([density.dlogp]) if v.owner]
    assert sum(isinstance(op, AdvancedIncSubtensor) for op in ops) == 1
