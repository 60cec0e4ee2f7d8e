"""What the chains of a run may use: cores, or devices. No draw depends on it beyond rounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymc_deer.backends import asked_devices
from pymc_deer.backends.base import Solver
from pymc_deer.chains.plan import affordable_window, window_plan
from pymc_deer.chains.prepare import are_sweeps_open
from pymc_deer.options import is_integer
from pymc_deer.sampling.settings import Settings
from pymc_deer.status import OptionError, invalid_option

if TYPE_CHECKING:
    # JAX is imported where devices are asked for.
    from pymc_deer.backends.jax import JaxSolver
    from pymc_deer.backends.mesh import AskedDevices


@dataclass(frozen=True)
class Hardware:
    """What the user has given a run.

    Attributes
    ----------
    cores
        Chains that run at the same time on a CPU, if it has as many; None for as many as BLAS may
        have threads, and one in a worker process.
    devices
        Devices of JAX that share the run; None for the one that JAX uses by default.
    """

    cores: int | None = None
    devices: "AskedDevices | None" = None

    @classmethod
    def of(cls, cores: Any, devices: Any) -> "Hardware":
        """From arguments of `pymc_deer.sample`.

        Raises
        ------
        OptionError, BackendError
            If they are not what is accepted, or JAX is not installed.
        """
        if cores is not None and not is_integer(cores, 1):
            raise invalid_option("sample", "cores", cores, "an integer of at least 1")
        return cls(cores, None if devices is None else asked_devices(devices))

    @property
    def spans_processes(self) -> bool:
        """Whether other processes take part in the run, and do the same."""
        return self.devices is not None and self.devices.spans_processes

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that shows what is going on."""
        return self.devices is None or self.devices.is_first

    def affordable_window(self, solver: Solver, n_chains: int) -> tuple[int, int]:
        """Width of the solver's windows, or of as wide ones as memory has room for; and how many of
        so many chains have one at the same time.
        """
        if self.devices is None:
            at_once = solver.on_cores(self.cores).chains_at_once(n_chains)
        else:
            # What it takes there is another program's: kernels of ours are for one device.
            solver, at_once = self._placed(self.devices, solver, n_chains), n_chains
        return affordable_window(solver, solver.plan.window, at_once), at_once

    def _placed(self, devices: "AskedDevices", solver: Solver, n_chains: int) -> "JaxSolver":
        """The solver on the devices, with calls as they suit the chains that each of them has."""
        placed, plan = devices.solver(solver, n_chains), solver.plan
        on_each = devices.chains_on_each(n_chains)
        suited = window_plan(plan.window, plan.max_sweeps, plan.tol, solver.density, on_each)
        return placed.with_plan(suited)

    def chains_on_each(self, n_chains: int) -> int:
        """Of so many chains, those on one device."""
        return n_chains if self.devices is None else self.devices.chains_on_each(n_chains)

    def step_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of the step, with the backend that the devices need."""
        if self.devices is None:
            return options
        if options.get("backend") == "numba":
            raise OptionError(
                "sample(devices=...): the run is one with backend='numba', and only JAX shares a "
                "run out over devices. Leave devices out, or begin one with backend='jax'."
            )
        backend = options.get("backend", "auto")
        return {**options, "backend": "jax" if backend == "auto" else backend}

    def refuse_differences(self, settings: Settings, store: Any, resume: Any) -> None:
        """Refuse what would be different in each of the processes that take part."""
        if not self.spans_processes:
            return
        for name, value in (("store", store), ("resume", resume)):
            if value is not None:
                raise OptionError(
                    f"sample(devices=..., {name}=...): a run of several processes keeps its draws "
                    f"in memory. Leave {name} out."
                )
        if settings.random_seed is None:
            raise OptionError(
                "sample(devices=..., random_seed=None): each process would draw a seed of its "
                "own. Give all of them the same random_seed."
            )
        options = settings.options
        window, rule = options.get("window", "auto"), options.get("jacobian", "auto")
        curvature = options.get("curvature")
        if window == "auto" or (window != 1 and are_sweeps_open(rule, curvature)):
            raise OptionError(
                "sample(devices=...): each process would choose windows by its own clock. Write "
                "window=1, or window, jacobian and curvature as one process has found them."
            )

    def solver(self, solver: Solver, settings: Settings, params: Sequence[Any]) -> Solver:
        """The solver on what there is, for the chains of these settings."""
        if self.devices is None:
            return solver.on_cores(self.cores)
        placed = self._placed(self.devices, solver, settings.chains)
        plan = placed.plan
        numbers = settings.draws, settings.tune, plan.window, plan.sweep_budget(plan.window)
        placed.placement.refuse_differences([*numbers, plan.tol, *params])
        return placed
