"""Deer steps beside others: draws solved ahead must not outlive what they assume."""

import itertools
import multiprocessing
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.step_methods.compound import BlockedStep, CompoundStep
from pymc.util import get_value_vars_from_user_vars
from scipy.special import logit
from scipy.stats import norm
from xarray import DataTree

from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.chains.chain import ChainRecord, SolvedStretch
from pymc_deer.step import DeerStep
from tests import support
from tests.support import BACKENDS, FORKS, SAMPLERS

BOTH_SAMPLERS = pytest.mark.parametrize("sampler", SAMPLERS)
SEED = 20_250_104
SHORT = {
    "cores": 1,
    "random_seed": SEED,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def chained() -> pm.Model:
    """x hangs on a closely: where a is, x must follow."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 10.0)
        pm.Normal("x", a, 0.1)
    return model


def new_step(sampler: type[DeerStep]) -> DeerStep:
    with chained() as model:
        step = sampler(
            [model["x"]],
            backend="jax",
            step_size=0.7,
            metric=np.array([0.01]),
            steps_per_draw=5,
        )
    assert isinstance(step, sampler)
    return step


@cache
def two_steps(sampler: type[DeerStep] = DeerMALA) -> tuple[DeerStep, DeerStep]:
    return new_step(sampler), new_step(sampler)


def keep_stale_draws(monkeypatch: pytest.MonkeyPatch, sampler: type[DeerStep] = DeerMALA) -> None:
    """Break the sampler: it solves ahead beside other steps, and never looks at what they did."""
    monkeypatch.setattr(sampler, "_alone", True)
    monkeypatch.setattr(SolvedStretch, "assumes", lambda stretch, params: True)


def drive(step: DeerStep, point: dict, n: int) -> dict:
    for _ in range(n):
        point, _ = step.step(point)
    return point


def check_conditioning_is_followed(sampler: type[DeerStep]) -> None:
    """After a jumps, the next x is that of a step which never saw the old a."""
    step, fresh = two_steps(sampler)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, {"a": np.array(0.0), "x": np.array(0.0)}, 3)
    jumped = {**point, "a": np.array(5.0)}
    fresh.sampling_state = step.sampling_state
    found, expected = drive(step, jumped, 1), drive(fresh, jumped, 1)
    assert found["x"] == expected["x"]
    assert found["a"] == 5.0
    # And x is drawn to where a now is.
    assert drive(step, found, 30)["x"] == pytest.approx(5.0, abs=0.5)


@BOTH_SAMPLERS
def test_change_of_another_variable_is_followed(sampler: type[DeerStep]) -> None:
    check_conditioning_is_followed(sampler)


@BOTH_SAMPLERS
def test_that_check_finds_draws_that_outlived_their_condition(
    monkeypatch: pytest.MonkeyPatch, sampler: type[DeerStep]
) -> None:
    keep_stale_draws(monkeypatch, sampler)
    with pytest.raises(AssertionError):
        check_conditioning_is_followed(sampler)


def test_change_in_place_is_followed() -> None:
    """Other steps may write into the array that they gave out before."""
    step, fresh = two_steps()
    a = np.array(0.0)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, {"a": a, "x": np.array(0.0)}, 3)
    a[...] = 5.0
    fresh.sampling_state = step.sampling_state
    expected = drive(fresh, {"a": np.array(5.0), "x": point["x"]}, 1)
    assert drive(step, {**point, "a": a}, 1)["x"] == expected["x"]


def test_change_of_its_own_variable_is_followed() -> None:
    with chained():
        step = DeerMALA(backend="jax", step_size=1e-12, metric=np.eye(2), steps_per_draw=1)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, step.model.initial_point(), 3)
    moved = drive(step, {**point, "x": np.array(7.0)}, 1)
    assert_allclose([moved["x"], moved["a"]], [7.0, point["a"]], atol=1e-9)


def place_of(record: ChainRecord | None) -> tuple[str, int]:
    """Which row of its momenta is next."""
    assert record is not None
    return str(record.streams.normal.rng.bit_generator.state), record.streams.normal.used


def test_own_variable_moved_by_another_step_uses_new_noise() -> None:
    with chained():
        step = DeerMALA(backend="jax", step_size=0.5, metric=np.eye(2), steps_per_draw=1)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    used = [place_of(step.record)]
    point = step.model.initial_point()
    for _ in range(4):
        point = drive(step, {**point, "x": point["x"] + 1e-3}, 1)
        state = step.sampling_state
        used.append(place_of(state.record))
    # Rows of the tape are spent by the draws that were handed out: no two draws share one.
    assert len(set(used)) == len(used) - 1


def mixture() -> pm.Model:
    """A discrete switch whose posterior is known."""
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=1.5)
    return model


def exact_probability() -> float:
    likelihood = norm.pdf(1.5, [0.0, 2.0], np.sqrt(2.0))
    return float(likelihood[1] / likelihood.sum())


def sample(
    make_other: Callable[[pm.Model], list] = lambda model: [],
    sampler: type[DeerStep] = DeerMALA,
    **changes: Any,
) -> DataTree:
    options = {"draws": 2000, "tune": 200, "chains": 1, "cores": 1, "random_seed": SEED}
    with mixture() as model:
        step = sampler([model["x"]], backend="jax", steps_per_draw=3)
        return pm.sample(
            step=[step, *make_other(model)],
            progressbar=False,
            compute_convergence_checks=False,
            **(options | changes),
        )


def check_mixture(idata: DataTree) -> None:
    """Means against the exact ones, within four standard errors at a fifth of the sample size."""
    k, x = (idata["posterior"][name].values.ravel() for name in ("k", "x"))
    p = exact_probability()
    assert k.mean() == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / (len(k) / 5)))
    # E[x | k, y] = (2k + y) / 2
    for value in (0, 1):
        chosen = x[k == value]
        error = 4 * np.sqrt(0.5 / (len(chosen) / 5))
        assert chosen.mean() == pytest.approx((2 * value + 1.5) / 2, abs=error)


@pytest.mark.parametrize(
    ("make_other", "sampler"),
    [
        pytest.param(lambda model: [], DeerMALA, id="Gibbs, assigned by PyMC"),
        pytest.param(lambda model: [pm.BinaryMetropolis([model["k"]])], DeerHMC, id="Metropolis"),
    ],
)
def test_beside_a_step_for_a_discrete_variable(
    make_other: Callable[[pm.Model], list], sampler: type[DeerStep]
) -> None:
    check_mixture(sample(make_other, sampler))


def test_stale_draws_would_bias_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_stale_draws(monkeypatch)
    with pytest.raises(AssertionError):
        check_mixture(sample())


def test_beside_slice_sampling() -> None:
    with chained() as model:
        pm.Normal("y", model["x"], 0.1, observed=3.0)
        idata = pm.sample(
            step=[DeerMALA([model["x"]], backend="jax"), pm.Slice([model["a"]])],
            draws=400,
            tune=200,
            chains=1,
            cores=1,
            random_seed=SEED,
            progressbar=False,
            compute_convergence_checks=False,
        )
    x, a = (idata["posterior"][name].values.ravel() for name in ("x", "a"))
    assert x.mean() == pytest.approx(3.0, abs=0.1)
    assert np.std(x - a) == pytest.approx(0.1 / np.sqrt(1.0), rel=0.2)


def test_one_step_for_each_variable() -> None:
    with chained() as model:
        step = DeerMALA(backend="jax", blocked=False)
        for made in (step, DeerMALA(None, backend="jax", blocked=False)):
            assert isinstance(made, CompoundStep)
            assert [method.vars[0].name for method in made.methods] == ["a", "x"]
        idata = pm.sample(
            step=step,
            draws=20,
            tune=20,
            chains=2,
            cores=1,
            random_seed=SEED,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert idata["posterior"]["x"].shape == (2, 20)
    assert len(np.unique(idata["posterior"]["x"].values)) > 20
    assert model is step.methods[0].model


class Draws(BlockedStep):
    """Indicators, whose type is int64, anew as booleans: as indices those are masks."""

    def __init__(self, name: str) -> None:
        model = pm.modelcontext(None)
        self.vars, self.name = [model.rvs_to_values[model[name]]], name
        self.rng = np.random.default_rng(SEED)

    def step(self, point: Any) -> Any:
        return {**point, self.name: self.rng.random(len(point[self.name])) < 0.5}, [{}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_other_steps_are_taken_for_what_their_variables_are(backend: str) -> None:
    with pm.Model():
        k, mu = pm.Bernoulli("k", 0.5, shape=5), pm.Normal("mu", [0.0, 1e4], shape=2)
        pm.Normal("y", mu[k], observed=np.full(5, 5.0))
        steps = [Draws("k"), DeerMALA([mu], backend=backend)]
        idata = pm.sample(step=steps, **{**SHORT, "tune": 20, "draws": 5, "chains": 1})
    assert idata["posterior"]["k"].dtype == "int64"
    assert len(np.unique(idata["posterior"]["mu"])) > 2


class Reflection(BlockedStep):
    """x to -x in place: another step that moves a variable of ours, and tells nobody."""

    name = "reflection"

    def __init__(self, vars: Any, **pymc: Any) -> None:
        self.vars = get_value_vars_from_user_vars(vars, pymc["model"])

    def step(self, point: Any) -> tuple[dict, list[dict]]:
        for var in self.vars:
            point[var.name] *= -1
        return point, [{}]


def check_reflections_are_followed() -> None:
    """With steps too small to see, all that moves x is the other step."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        fixed = {"metric": np.ones(2), "step_size": 1e-12, "steps_per_draw": 1}
        step = DeerMALA(backend="jax", window=1, **fixed)
        other = Reflection([x], model=model)
    both = CompoundStep([step, other])
    both.setup_chain(np.random.default_rng(1), 0, 20)
    point, found = model.initial_point(), []
    for _ in range(6):
        point, _ = both.step(point)
        found.append(point["x"].copy())
    assert step.record is not None
    assert np.abs(found[0]).min() > 0.01
    for before, after in itertools.pairwise(found):
        assert_allclose(after, -before, atol=1e-9)


def test_a_step_that_writes_into_our_variables_is_followed() -> None:
    check_reflections_are_followed()


def test_that_check_finds_a_step_that_trusts_the_point_it_gave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeerMALA, "_is_where_it_was", lambda step, point, position: True)
    with pytest.raises(AssertionError):
        check_reflections_are_followed()


def check_new_data_is_followed() -> None:
    """Data that a callback sets in the middle of a stretch decides the draws after it."""
    with pm.Model():
        centre = pm.Data("centre", 0.0)
        pm.Normal("x", centre, 1.0)
        step = DeerMALA(backend="jax", step_size=0.7, metric=np.ones(1), steps_per_draw=5)

    def callback(trace: Any, draw: Any) -> None:
        if draw.draw_idx == 9:
            pm.set_data({"centre": 100.0}, model=step.model)

    idata = support.sample(step, draws=40, tune=0, chains=1, callback=callback)
    x = idata["posterior"]["x"].values[0]
    assert np.abs(x[:10]).max() < 10
    assert x[25:].mean() == pytest.approx(100.0, abs=2.0)


def test_data_set_while_sampling_is_followed() -> None:
    check_new_data_is_followed()


def test_that_check_finds_draws_for_the_old_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SolvedStretch, "assumes", lambda stretch, params: True)
    with pytest.raises(AssertionError):
        check_new_data_is_followed()


def clusters(n: int) -> np.ndarray:
    """n observations of two overlapping clusters."""
    rng = np.random.default_rng(8)
    return rng.normal(np.where(rng.random(n) < 0.35, 1.0, -1.0), 1.0)


def indicators(y: np.ndarray) -> pm.Model:
    """A mixture of two normals with an indicator for each observation."""
    with pm.Model() as model:
        weight = pm.Beta("weight", 2.0, 2.0)
        mu = pm.Normal("mu", [-1.0, 1.0], 0.7, shape=2)
        k = pm.Bernoulli("k", weight, shape=len(y))
        pm.Normal("y", mu[k], 1.0, observed=y)
    return model


def marginalised(y: np.ndarray) -> pm.Model:
    """The same with the indicators summed out."""
    with pm.Model() as model:
        weight = pm.Beta("weight", 2.0, 2.0)
        mu = pm.Normal("mu", [-1.0, 1.0], 0.7, shape=2)
        parts = [pm.Normal.dist(mu[0], 1.0), pm.Normal.dist(mu[1], 1.0)]
        pm.Mixture("y", pm.math.stack([1.0 - weight, weight]), parts, observed=y)
    return model


class Grid(NamedTuple):
    """Values by name on a grid, and the posterior probability of each point."""

    values: dict[str, np.ndarray]
    probability: np.ndarray

    def mean(self, values: np.ndarray) -> float:
        return float(np.sum(self.probability * values))

    def centred(self, name: str) -> np.ndarray:
        return self.values[name] - self.mean(self.values[name])


@cache
def quadrature(n: int) -> Grid:
    """The marginalised posterior and the indicators' probabilities, by sums over a grid."""
    y, size = clusters(n), 61
    weight = np.linspace(0.0, 1.0, size + 2)[1:-1][:, None, None]
    low = np.linspace(-3.5, 1.5, size)[None, :, None]
    high = np.linspace(-1.5, 3.5, size)[None, None, :]
    logp = np.log(weight * (1 - weight)) - ((low + 1) ** 2 + (high - 1) ** 2) / (2 * 0.7**2)
    shares = []
    for value in y:
        each = [(1 - weight) * norm.pdf(value, low), weight * norm.pdf(value, high)]
        total = each[0] + each[1]
        logp = logp + np.log(total)
        shares.append(each[1] / total)
    probability = np.exp(logp - logp.max())
    probability /= probability.sum()
    values = {"weight": weight, "low": low, "high": high}
    values |= {f"k{i}": share for i, share in enumerate(shares)}
    # Share of the indicators that are 1: its mean and variance where the parameters are known.
    values["k"] = sum(shares) / n
    values["noise of k"] = sum(share * (1 - share) for share in shares) / n**2
    return Grid(values, probability)


def test_the_grid_is_that_of_the_marginalised_model() -> None:
    grid = quadrature(8)
    logp = marginalised(clusters(8)).compile_logp(jacobian=False, mode="FAST_COMPILE")
    found = []
    for at in ((10, 30, 20), (30, 25, 40), (50, 40, 35)):
        weight = grid.values["weight"][at[0], 0, 0]
        mu = [grid.values["low"][0, at[1], 0], grid.values["high"][0, 0, at[2]]]
        point = {"weight_logodds__": logit(weight), "mu": np.array(mu)}
        found.append(np.log(grid.probability[at]) - logp(point))
    assert_allclose(found, found[0], rtol=1e-10)


def check_indicators(idata: DataTree, n: int) -> None:
    """Means, variances, and covariances of parameters with the indicators, against exact ones.

    Within 4.5 standard errors, for all of them at once, of exact deviations and of as many draws
    as these are worth for the slowest parameter: a chain that has seldom been in the tails thinks
    too well of itself there.
    """
    posterior, grid = idata["posterior"], quadrature(n)
    mu, k = posterior["mu"].values, posterior["k"].values
    draws = {"weight": posterior["weight"].values, "low": mu[..., 0], "high": mu[..., 1]}
    share, known = k.mean(axis=-1) - grid.mean(grid.values["k"]), grid.centred("k")

    worth = min(float(az.ess(values)) for values in draws.values())
    assert worth > 200

    def check(found: np.ndarray, mean: float, square: float) -> None:
        error = np.sqrt((square - mean**2) / worth)
        assert found.mean() == pytest.approx(mean, abs=4.5 * error)

    for name, values in draws.items():
        centred = grid.centred(name)
        deviations = values - grid.mean(grid.values[name])
        variance = grid.mean(centred**2)
        check(deviations, 0.0, variance)
        check(deviations**2, variance, grid.mean(centred**4))
        # Parameters that lag behind the indicators would lose this.
        square = grid.mean(centred**2 * (known**2 + grid.values["noise of k"]))
        check(deviations * share, grid.mean(centred * known), square)
    for i in range(n):
        mean = grid.mean(grid.values[f"k{i}"])
        check(k[..., i].astype(float), mean, mean)


def step_beside_indicators(n: int, backend: str, sampler: type[DeerStep] = DeerMALA) -> DeerStep:
    with indicators(clusters(n)) as model:
        step = sampler([model["weight"], model["mu"]], backend=backend)
    assert isinstance(step, sampler)
    return step


def sample_indicators(step: DeerStep, **changes: Any) -> DataTree:
    with step.model as model:
        # In this order: indicators drawn last would fit whatever parameters they are drawn for.
        return pm.sample(
            step=[pm.BinaryGibbsMetropolis([model["k"]]), step],
            **{**SHORT, "draws": 1500, "tune": 300, "chains": 2, **changes},
        )


def test_indicators_give_the_marginalised_posterior() -> None:
    check_indicators(sample_indicators(step_beside_indicators(8, "jax")), 8)


def test_stale_draws_would_bias_the_indicators(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_stale_draws(monkeypatch)
    # Few draws ahead would only slow the chain down: so many are clearly wrong.
    monkeypatch.setattr("pymc_deer.chains.plan.SHORTEST_CALL", 2**15)
    with pytest.raises(AssertionError):
        check_indicators(sample_indicators(step_beside_indicators(8, "jax")), 8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_indicators_give_the_marginalised_posterior() -> None:
    step = step_beside_indicators(20, BACKENDS[0], DeerHMC)
    idata = sample_indicators(step, cores=2, mp_ctx="forkserver")
    check_indicators(idata, 20)


@pytest.mark.skipif("numba" not in BACKENDS, reason="about Numba, which can be forked")
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform"
)
@FORKS
def test_processes_give_the_same_draws_of_indicators() -> None:
    """Where the points that a step is given are views of shared memory."""
    step, short = step_beside_indicators(8, "numba"), {"draws": 40, "tune": 40}
    one = sample_indicators(step, **short)
    two = sample_indicators(step, **short, cores=2, mp_ctx="fork")
    for name in ("weight", "mu", "k"):
        assert_array_equal(one["posterior"][name], two["posterior"][name])
    assert len(np.unique(one["posterior"]["weight"])) > 40


LINKED = np.array([[1.0, 0.8, 0.3], [0.8, 1.0, 0.5], [0.3, 0.5, 1.0]])


def linked() -> pm.Model:
    """Three correlated variables, so that each step conditions on what the others move."""
    precision = np.linalg.inv(LINKED)
    with pm.Model() as model:
        a, b, c = (pm.Flat(name) for name in "abc")
        x = pt.stack([a, b, c])
        # PyTensor's matrix product takes Numba a minute to compile for PyMC's steps.
        pm.Potential("joint", -0.5 * (precision * x * x[:, None]).sum())
    return model


def check_linked(idata: DataTree) -> None:
    draws = np.stack([idata["posterior"][name].values for name in "abc"], axis=-1)
    for i, j in itertools.combinations_with_replacement(range(3), 2):
        product = draws[..., i] * draws[..., j]
        error = float(az.mcse(product))
        assert product.mean() == pytest.approx(LINKED[i, j], abs=4 * error), (i, j)


Others = Callable[[pm.Model, str], list]


def assigned_nuts(model: pm.Model, backend: str) -> list:
    return []


def slices(model: pm.Model, backend: str) -> list:
    return [pm.Slice([model["b"]]), pm.Slice([model["c"]])]


def more_blocks(model: pm.Model, backend: str) -> list:
    paths = DeerHMC([model["c"]], backend=backend, n_leapfrog=3)
    return [DeerMALA([model["b"]], backend=backend), paths]


SLOW = pytest.mark.slow
BLOCKS = [
    pytest.param("jax", slices, marks=SLOW),
    pytest.param("jax", more_blocks),
    pytest.param("numba", slices, marks=SLOW),
    pytest.param("numba", more_blocks, marks=SLOW),
    pytest.param("jax", assigned_nuts, marks=SLOW),
]


@pytest.mark.parametrize(
    ("backend", "others"), [pair for pair in BLOCKS if pair.values[0] in BACKENDS]
)
def test_blocks_have_the_joint_posterior(backend: str, others: Others) -> None:
    with linked() as model:
        first = DeerMALA([model["a"]], backend=backend)
        options = {**SHORT, "draws": 1500, "tune": 300, "chains": 1}
        idata = pm.sample(step=[first, *others(model, backend)], **options)
    check_linked(idata)


def test_draws_beside_others_are_inner_trajectories_solved_in_windows() -> None:
    fixed = {"metric": np.ones(1), "step_size": 0.5, "steps_per_draw": 12, "backend": "jax"}
    found = []
    for window in (1, 4):
        with linked() as model:
            step = DeerMALA([model["a"]], window=window, curvature=1.5, **fixed)
            others = [pm.Slice([model["b"]]), pm.Slice([model["c"]])]
            options = {**SHORT, "draws": 50, "tune": 0, "chains": 1}
            found.append(pm.sample(step=[step, *others], **options))
    one, four = found
    stats = four["sample_stats"]
    assert (stats["n_transitions"] == 12).all()
    assert (stats["window"] == 4).all()
    assert (stats["sweeps"] >= 3).all()
    for name in "abc":
        assert_allclose(one["posterior"][name], four["posterior"][name], rtol=1e-4, atol=1e-4)


def test_blocks_follow_their_seed() -> None:
    with linked() as model:
        steps = [DeerMALA([model[name]], backend="jax") for name in "abc"]
        options = {**SHORT, "draws": 20, "tune": 20, "chains": 2}
        one, two = (pm.sample(step=steps, **options) for _ in range(2))
    for name in "abc":
        assert_array_equal(one["posterior"][name], two["posterior"][name])


def test_blocks_share_no_noise() -> None:
    with linked() as model:
        steps = [DeerMALA([model[name]], backend="jax") for name in "abc"]
    CompoundStep(steps).setup_chain(np.random.default_rng(SEED), 5, 5)
    records = [step.record for step in steps]
    tapes = [record.streams.tape(4, 1, record.warmup.tuning) for record in records]
    for name in ("xi", "log_u"):
        assert len(np.unique([getattr(tape, name) for tape in tapes])) == 3 * 4, name
