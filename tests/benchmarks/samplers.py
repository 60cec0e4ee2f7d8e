"""The samplers of the suite, each on its own defaults: ours, PyMC's NUTS and nutpie.

Those of the JAX libraries are in ``jax_samplers.py``. A sampler's own clock tells its phases; NUTS
in PyMC and in nutpie tells warm-up and sampling as one, which are shared out by gradients.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pymc as pm

from tests.benchmarks.figures import Run


@dataclass(frozen=True)
class Job:
    """What a sampler is to do; see :class:`~tests.benchmarks.cases.Case`."""

    model: pm.Model
    draws: int
    tune: int | None
    chains: int
    cores: int
    seed: int

    @property
    def names(self) -> list[str]:
        """The free variables."""
        return [rv.name for rv in self.model.free_RVs]

    @property
    def lengths(self) -> dict[str, int]:
        """Arguments that every sampler knows; warm-up where it is not left to the sampler."""
        given = {"draws": self.draws, "chains": self.chains}
        return given if self.tune is None else {**given, "tune": self.tune}


Sampler = Callable[[Job], Run]


def ours(kernel: str, **options: Any) -> Sampler:
    """`pymc_deer.sample` with its defaults but for these options."""

    def run(job: Job) -> Run:
        import pymc_deer

        begun = time.perf_counter()
        idata: Any = pymc_deer.sample(
            **(job.lengths | options),
            kernel=kernel,
            model=job.model,
            cores=job.cores,
            random_seed=job.seed,
            compute_convergence_checks=False,
            quiet=True,
        )
        total = time.perf_counter() - begun
        stats = idata["sample_stats"]
        seconds = {name: stats.attrs[f"deer_seconds_{name}"] for name in PHASES}
        sweeps = int(stats["sweeps"].sum())
        return Run(
            seconds["compile"],
            seconds["warmup"],
            seconds["sampling"] + seconds["recording"],
            total,
            {name: idata["posterior"][name].to_numpy() for name in job.names},
            int(stats["n_steps"].sum()),
            int(stats["diverging"].sum()),
            {
                "window": int(stats.attrs["deer_window"]),
                "sweeps": sweeps,
                "leapfrog_steps": int(stats.attrs["deer_n_leapfrog"]),
                "backend": str(stats.attrs["deer_backend"]),
                **{f"own_{n}": options[n] for n in ("chains", "draws", "tune") if n in options},
            },
        )

    return run


PHASES = ("compile", "warmup", "sampling", "recording")


def pymc_nuts(job: Job) -> Run:
    """PyMC's own NUTS, its chains in processes."""
    begun = time.perf_counter()
    with job.model:
        idata: Any = pm.sample(
            **job.lengths,
            nuts_sampler="pymc",
            cores=job.cores,
            random_seed=job.seed,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            progressbar=False,
            quiet=True,
        )
    total = time.perf_counter() - begun
    sampling = idata["posterior"].attrs["sampling_time"]
    return _of_nuts(idata, job, total - sampling, sampling, total)


def nutpie(job: Job) -> Run:
    """nutpie, compiled by PyTensor to Numba too."""
    import nutpie

    begun = time.perf_counter()
    compiled: Any = nutpie.compile_pymc_model(job.model)
    compiling = time.perf_counter() - begun
    idata, sampling = sampled_by_nutpie(compiled, **job.lengths, cores=job.cores, seed=job.seed)
    total = time.perf_counter() - begun
    return _of_nuts(idata, job, compiling, sampling, total)


def sampled_by_nutpie(compiled: Any, **arguments: Any) -> tuple[Any, float]:
    """What ``nutpie.sample`` returns, and its seconds but for the conversion to InferenceData.

    Nobody's sampling counts that. Of a small model it takes several times as long as the draws.
    """
    import nutpie

    module = import_module("nutpie.sample")
    convert, converting = module._arrow_to_arviz, 0.0

    def timed(*of: Any, **named: Any) -> Any:
        nonlocal converting
        begun = time.perf_counter()
        found = convert(*of, **named)
        converting += time.perf_counter() - begun
        return found

    begun = time.perf_counter()
    with patch.object(module, "_arrow_to_arviz", timed):
        idata = nutpie.sample(compiled, **arguments, progress_bar=False)
    return idata, time.perf_counter() - begun - converting


def _of_nuts(idata: Any, job: Job, compiling: float, sampling: float, total: float) -> Run:
    warmup, kept = (int(idata[g]["n_steps"].sum()) for g in ("warmup_sample_stats", "sample_stats"))
    share = kept / (warmup + kept)
    return Run(
        compiling,
        sampling * (1 - share),
        sampling * share,
        total,
        {name: idata["posterior"][name].to_numpy() for name in job.names},
        kept,
        int(idata["sample_stats"]["diverging"].sum()),
    )


@dataclass(frozen=True)
class InJax:
    """One of ``jax_samplers.py``, imported when it is run: JAX must not be in PyMC's way."""

    name: str

    def compiled(self, job: Job) -> Callable[[int], Run]:
        """What runs with a seed, compiled for the job but for its seed."""
        return getattr(import_module("tests.benchmarks.jax_samplers"), self.name)(job)

    def __call__(self, job: Job) -> Run:
        return self.compiled(job)(job.seed)


SAMPLERS: Mapping[str, Sampler] = {
    "deer_mala": ours("mala"),
    "deer_hmc": ours("hmc"),
    "deer_hmc_numba": ours("hmc", backend="numba"),
    "deer_hmc_windows": ours("hmc", window=1024),
    "deer_mala_windows": ours("mala", window=4096),
    "deer_hmc_256": ours("hmc", window=1, chains=256, draws=100, tune=200),
    "deer_sequential": ours("mala", window=1),
    "deer_sequential_numba": ours("mala", window=1, backend="numba", metric="diag"),
    "deer_sequential_jax": ours("mala", window=1, backend="jax"),
    "pymc": pymc_nuts,
    "nutpie": nutpie,
    "numpyro": InJax("numpyro_nuts"),
    "blackjax_nuts": InJax("blackjax_nuts"),
    "blackjax_mala": InJax("blackjax_mala"),
    "blackjax_chees": InJax("blackjax_chees"),
}
"""By name; ``deer_*`` are ours, ``deer_sequential*`` without windows. That on Numba has nutpie's
kind of metric, so that times per gradient are of the same work. ``deer_hmc_256`` has as many chains
and draws as ChEES-HMC, and ``deer_hmc_windows`` and ``deer_mala_windows`` have windows, which runs
as short as these do not try by themselves. ``deer_hmc`` runs on JAX, the default, which compiles
sooner; models with groups sample faster as ``deer_hmc_numba``."""

CPU = (
    *("deer_mala", "deer_hmc", "deer_hmc_numba", "deer_sequential_numba"),
    *("pymc", "nutpie", "numpyro", "blackjax_nuts", "blackjax_mala"),
)
CPU_LARGE = ("deer_mala", "deer_hmc", "pymc", "nutpie", "numpyro")
GPU_OURS = ("deer_hmc", "deer_hmc_windows", "deer_mala", "deer_mala_windows")
GPU = ("deer_hmc_256", "numpyro", "blackjax_nuts", "blackjax_chees")
GPU_FEW = ("numpyro", "blackjax_nuts")
"""Others on a GPU; the second without those of hundreds of chains."""
IMPORTED = {"nutpie": "nutpie"}
"""What a sampler's process imports before it is asked: of others no import is part of a run. Ours
import JAX within theirs, as for users."""
USES_JAX = ("numpyro", "blackjax_nuts", "blackjax_mala", "blackjax_chees")
"""Samplers for which a CPU is to look like one device a chain, as PyMC has it."""
