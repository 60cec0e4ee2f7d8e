"""What runs of `pymc_deer.sample` may share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymc as pm
import pytensor
import pytest

from pymc_deer.chains import plan
from pymc_deer.chains.trials import Foreseen
from pymc_deer.sampling import shared_step


@contextmanager
def steps_made_once() -> Iterator[None]:
    """Each step is made once: it holds no chain.

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
