"""DeerHMC: several leapfrog steps a transition."""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from pymc.model import Model
from pymc.step_methods.state import dataclass_state

from pymc_deer.options import PYMC_ARGUMENTS, Auto, CommonArguments, HMCOptions
from pymc_deer.step import DeerState, DeerStep


@dataclass_state
class HMCState(DeerState):
    """What PyMC stores and restores of a :class:`DeerHMC`."""


class DeerHMC(DeerStep):
    """Hamiltonian Monte Carlo with paths of tuned length, solved in windows of the chain.

    The engine is that of :class:`DeerMALA`, and so are all arguments not listed here. Transitions
    of several leapfrog steps forget faster than MALA's single ones, for each gradient too; windows
    of them take more sweeps.

    Parameters
    ----------
    vars
        Variables to sample; all continuous ones of the model by default.
    n_leapfrog
        Leapfrog steps of a transition; 1 is MALA. An even number is taken in pairs, two-stage steps
        (Blanes, Casas and Sanz-Serna 2014), which keep the energy better. ``"auto"``: warm-up takes
        transitions of random even numbers of steps, and the draws that number with the most
        effective draws per gradient.
    path_length
        In place of `n_leapfrog`: number of steps, an even one and at most 256, times step size, in
        whitened units; pi / 2 takes a whitened normal to an independent point. None by default.
    model, rng, initial_point, compile_kwargs, blocked
        As in :class:`DeerMALA`.
    **options
        Any other argument of :class:`DeerMALA`, with other defaults: ``target_accept="auto"`` is
        0.8, since the optimum lies above MALA's and is flat, and where transitions of warm-up
        diverge more, up to 0.95; `step_size_jitter` 0.2, so that no frequency of the
        posterior resonates with the paths; `small_steps` 0.05, so that no chain stays for long in a
        place too narrow for the others; ``steps_per_draw="auto"`` takes 2 transitions for each
        draw of warm-up, and then aims at draws worth nearly an independent one, of about 4096
        leapfrog steps at most;
        ``metric="auto"`` is dense up to 32 dimensions, and up to 100 where a gradient reads more
        than D^2 numbers, since long paths need whitening less.

    Raises
    ------
    OptionError, ModelError, BackendError, StartError, ForkError
        As :class:`DeerMALA` does.

    References
    ----------
    Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo, chapter 5.
    Blanes, Casas and Sanz-Serna (2014), "Numerical integrators for the hybrid Monte Carlo method",
    SIAM Journal on Scientific Computing 36(4).

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_deer import DeerHMC
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     idata = pm.sample(
    ...         step=DeerHMC(), chains=2, cores=1, random_seed=1, progressbar=False
    ...     )
    >>> idata.posterior["x"].sizes["draw"]
    1000
    """

    name = "deer_hmc"
    _state_class = HMCState

    def __init__(
        self,
        vars: Any = None,
        *,
        n_leapfrog: int | Auto = "auto",
        path_length: float | None = None,
        model: Model | None = None,
        rng: Any = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        **options: Unpack[CommonArguments],
    ) -> None:
        checked = HMCOptions.from_arguments(
            {"n_leapfrog": n_leapfrog, "path_length": path_length, **options}, also=PYMC_ARGUMENTS
        )
        super().__init__(
            vars, checked, model=model, rng=rng, compile_kwargs=compile_kwargs, blocked=blocked
        )
