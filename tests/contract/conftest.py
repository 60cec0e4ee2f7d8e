"""Fixtures of the contract tests."""

from collections.abc import Iterator
from typing import Any

import pymc as pm
import pytensor
import pytest

from pymc_deer.chains import plan
from pymc_deer.chains.trials import Foreseen
from pymc_deer.sampling import shared_step
from tests.random_models.check import quick_compilation


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """PyMC's own functions, of which each chain's trace has one, are not compiled by Numba.

    Backends compile as always. A test marked ``default_mode`` has all as users have it.
    """
    if request.node.get_closest_marker("default_mode"):
        yield
    else:
        with quick_compilation():
            yield


@pytest.fixture(scope="module")
def steps_made_once() -> Iterator[None]:
    """Runs of `pymc_deer.sample` share the steps that are alike: a step holds no chain.

    How many draws it is for tells none apart: that is asked only where windows are measured.
    """
    make, made = shared_step._step, {}

    def cached(kernel: str, model: pm.Model, foreseen: Foreseen, options: dict[str, Any]) -> Any:
        # In words: a kernel that is none may have no hash.
        key = repr((kernel, sorted(options.items()))), id(model), foreseen.n_chains
        key += pytensor.config.floatX, plan.SHORTEST_CALL
        if key not in made:
            made[key] = model, make(kernel, model, foreseen, options)
        return made[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_step, "_step", cached)
        yield
