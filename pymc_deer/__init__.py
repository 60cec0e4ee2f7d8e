"""Parallel-in-time MALA and HMC for PyMC: whole windows of a chain solved at once, exactly.

>>> import pymc as pm
>>> from pymc_deer import DeerMALA
>>> with pm.Model() as model:
...     x = pm.Normal("x")
...     step = DeerMALA()
"""

from importlib.metadata import version

from pymc_deer import examples, plots, store
from pymc_deer.hmc import DeerHMC
from pymc_deer.mala import DeerMALA
from pymc_deer.profiling.profile import profile
from pymc_deer.resuming import resume
from pymc_deer.sampling.driver import sample
from pymc_deer.sweep_trace import SweepTrace, trace_sweeps

__version__ = version("pymc-deer")
__all__ = [
    "DeerHMC",
    "DeerMALA",
    "SweepTrace",
    "__version__",
    "examples",
    "plots",
    "profile",
    "resume",
    "sample",
    "store",
    "trace_sweeps",
]
