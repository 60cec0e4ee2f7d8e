"""A chain that is taken up from a stored state makes the draws that it would have made."""

from functools import cache
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_array_equal
from pymc.step_methods.compound import CompoundStep

from pymc_deer import DeerHMC, DeerMALA, resume
from pymc_deer.examples import eight_schools
from pymc_deer.status import ModelError, OptionError
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, SAMPLERS, sample

TUNE, DRAWS = 30, 40
NAMES = ("mu", "tau", "eta", "theta")


@cache
def compiled_step(backend: str, sampler: type[DeerStep] = DeerMALA, window: int = 1) -> DeerStep:
    with eight_schools():
        step = sampler(backend=backend, window=window)
    assert isinstance(step, sampler)
    return step


def states_of(step: Any, stored: dict[int, bytes], **options: Any) -> Any:
    """A run of one chain; `stored` gets its state and point after each of the draws it names."""

    def callback(trace: Any, draw: Any) -> None:
        if draw.draw_idx in stored:
            stored[draw.draw_idx] = cloudpickle.dumps((step.sampling_state, draw.point))

    return sample(
        step,
        chains=1,
        tune=TUNE,
        draws=DRAWS,
        callback=callback,
        discard_tuned_samples=False,
        **options,
    )


def assert_rest(rest: Any, whole: Any, names: tuple[str, ...], n_done: int) -> None:
    """`rest` is all of `whole` after the first `n_done` draws, those of warm-up included."""
    for prefix, first, n in (("warmup_", n_done, TUNE), ("", max(0, n_done - TUNE), DRAWS)):
        if first >= n:
            assert f"{prefix}posterior" not in rest or not rest[f"{prefix}posterior"].sizes["draw"]
            continue
        for name in names:
            expected = whole[f"{prefix}posterior"][name].to_numpy()[:, first:]
            assert_array_equal(rest[f"{prefix}posterior"][name].to_numpy(), expected)
        for name in ("lp", "step_size", "sweeps", "window"):
            expected = whole[f"{prefix}sample_stats"][name].to_numpy()[:, first:]
            assert_array_equal(rest[f"{prefix}sample_stats"][name].to_numpy(), expected)


@pytest.mark.parametrize(
    ("backend", "sampler", "window"),
    [
        (BACKENDS[0], DeerMALA, 1),
        (BACKENDS[-1], DeerHMC, 1),
        (BACKENDS[-1], DeerMALA, 16),
    ],
)
def test_the_rest_of_a_chain(backend: str, sampler: type[DeerStep], window: int) -> None:
    step = compiled_step(backend, sampler, window)
    stored = dict.fromkeys((0, 7, TUNE - 1, TUNE, TUNE + 13, TUNE + DRAWS - 2), b"")
    whole = states_of(step, stored)
    assert len(np.unique(whole["posterior"]["mu"])) > DRAWS / 2
    for last, packed in stored.items():
        state, _ = cloudpickle.loads(packed)
        assert_rest(resume(step, state), whole, NAMES, last + 1)


def test_a_point_in_another_order() -> None:
    step = compiled_step(BACKENDS[-1])
    stored = {TUNE + 9: b""}
    whole = states_of(step, stored)
    state, point = cloudpickle.loads(stored[TUNE + 9])
    assert len(point) > 1
    assert_rest(resume(step, state, dict(reversed(point.items()))), whole, NAMES, TUNE + 10)


def test_a_state_of_another_step_leaves_the_step_as_it_is() -> None:
    step, other = (compiled_step(BACKENDS[-1], sampler) for sampler in SAMPLERS)
    for each in (step, other):
        each.setup_chain(np.random.default_rng(0), 0, 2)
        each.step(each.model.initial_point())
    before = step.record
    with pytest.raises(OptionError, match=r"state must be a value of sampling_state of a DeerMALA"):
        resume(step, other.sampling_state)
    assert step.record is before


def made_for_data() -> DeerStep:
    """For so many rows, sorted by group, that they are gone through in another order."""
    rng, n = np.random.default_rng(0), 4096
    with pm.Model():
        x = pm.Data("x", rng.normal(size=n))
        means = pm.Normal("means", shape=8)
        group = np.sort(rng.integers(0, 8, n))
        pm.Normal("y", means[group] + x, 30.0, observed=rng.normal(size=n))
        step = DeerMALA(backend=BACKENDS[0], window=1, step_size=0.3)
    assert isinstance(step, DeerMALA)
    return step


def test_a_model_that_says_more_than_it_did_is_refused() -> None:
    step = made_for_data()
    stored = {TUNE + 9: b""}
    states_of(step, stored)
    state, _ = cloudpickle.loads(stored[TUNE + 9])
    with step.model:
        pm.Potential("more", -step.model["means"].sum())
    with pytest.raises(ModelError, match=r"^more: in the model, and no part of the log-density"):
        resume(step, state)


def test_data_that_are_written_to_in_place_are_those_of_what_comes() -> None:
    step, found = made_for_data(), []
    stored = {TUNE + 9: b""}
    states_of(step, stored)
    packed = cloudpickle.loads(stored[TUNE + 9])
    data = step.model["x"]
    found.append(resume(step, *packed)["posterior"]["means"])
    data.get_value(borrow=True)[:2000] += 5.0
    found.append(resume(step, *packed)["posterior"]["means"])
    with step.model:
        pm.set_data({"x": data.get_value()})
    assert_array_equal(found[1], resume(step, *packed)["posterior"]["means"])
    assert not np.array_equal(*found)


def test_a_state_in_another_precision_is_refused() -> None:
    states = {}
    for dtype in ("float32", "float64"):
        with pytensor.config.change_flags(floatX=dtype), pm.Model() as model:
            pm.Normal("x")
            step = DeerMALA(backend="jax", window=1, metric="diag")
            step.setup_chain(np.random.default_rng(0), 0, 2)
            step.step(model.initial_point())
        states[dtype] = step.sampling_state
    with pytest.raises(OptionError, match="another precision"):
        resume(step, states["float32"])


def test_an_interrupt_keeps_what_was_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled_step(BACKENDS[-1])
    stored = {TUNE + 9: b""}
    whole = states_of(step, stored)
    state, _ = cloudpickle.loads(stored[TUNE + 9])
    take, taken = DeerStep.step, []

    def interrupted(step: DeerStep, point: Any) -> Any:
        taken.append(point)
        if len(taken) == 6:
            raise KeyboardInterrupt
        return take(step, point)

    with monkeypatch.context() as patch:
        patch.setattr(DeerStep, "step", interrupted)
        found = resume(step, state)
    expected = whole["posterior"]["mu"].to_numpy()[:, 10:]
    assert_array_equal(found["posterior"]["mu"].to_numpy(), expected[:, :5])
    # The step stands where the chain does.
    rest = resume(step, step.sampling_state)
    assert_array_equal(rest["posterior"]["mu"].to_numpy(), expected[:, 5:])


def test_what_the_chain_tells_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = compiled_step(BACKENDS[-1])
    stored = {TUNE + 9: b""}
    states_of(step, stored)
    monkeypatch.setattr("pymc_deer.chains.chain.Chain.warning", lambda chain: "It mixes slowly.")
    resume(step, cloudpickle.loads(stored[TUNE + 9])[0])
    assert "It mixes slowly." in caplog.messages


def test_beside_another_step() -> None:
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("x", k, 1.0)
        steps: Any = [DeerMALA([model["x"]], backend="jax"), pm.BinaryGibbsMetropolis([k])]
        step: Any = CompoundStep(steps)
    step.model = model
    stored = {TUNE + 9: b""}
    whole = states_of(step, stored)
    state, point = cloudpickle.loads(stored[TUNE + 9])
    rest = resume(step, state, point)
    for name in ("k", "x"):
        expected = whole["posterior"][name].to_numpy()[:, 10:]
        assert_array_equal(rest["posterior"][name].to_numpy(), expected)
    with pytest.raises(OptionError, match="give the last point"):
        resume(step, state)


def test_beside_a_step_whose_tuning_ends_once() -> None:
    """Each end of its tuning drops draws that DEMetropolisZ proposes from."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", x)
        steps: Any = [DeerMALA([x], backend="jax"), pm.DEMetropolisZ([model["y"]], S=np.ones(1))]
        step: Any = CompoundStep(steps)
    step.model = model
    stored = dict.fromkeys((TUNE - 11, TUNE - 1, TUNE + 9), b"")
    whole = states_of(step, stored)
    for last, packed in stored.items():
        rest = resume(step, *cloudpickle.loads(packed))
        for name in ("x", "y"):
            expected = whole["posterior"][name].to_numpy()[:, max(0, last + 1 - TUNE) :]
            assert_array_equal(rest["posterior"][name].to_numpy(), expected)


def test_inside_of_a_compound_step() -> None:
    with pm.Model() as model:
        x, y = pm.Normal("x"), pm.Normal("y")
        inner: Any = CompoundStep([DeerMALA([x], backend="jax"), pm.Slice([y])])
        step: Any = CompoundStep([inner])
    step.model = model
    stored = {TUNE + 9: b""}
    whole = states_of(step, stored)
    state, point = cloudpickle.loads(stored[TUNE + 9])
    rest = resume(step, state, point)
    expected = whole["posterior"]["x"].to_numpy()[:, 10:]
    assert_array_equal(rest["posterior"]["x"].to_numpy(), expected)


def test_a_state_without_draws_is_refused() -> None:
    step = compiled_step(BACKENDS[-1])
    step.setup_chain(np.random.default_rng(0), 0, 1)
    with pytest.raises(OptionError, match="before the first draw"):
        resume(step, step.sampling_state)
    step.step(step.model.initial_point())
    with pytest.raises(OptionError, match="after the last draw"):
        resume(step, step.sampling_state)


def test_an_interrupt_before_the_first_draw_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = compiled_step("jax")
    stored = {TUNE + 13: b""}
    states_of(step, stored)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(step), "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resume(step, *cloudpickle.loads(stored[TUNE + 13]))
