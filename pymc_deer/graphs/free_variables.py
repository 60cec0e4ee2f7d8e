"""Variables that are to be sampled, and those that no gradient leads through."""

from collections import Counter
from collections.abc import Sequence

from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.simulator import SimulatorRV
from pymc.logprob.abstract import ValuedRV
from pymc.logprob.censoring import MeasurableClip, MeasurableRound
from pymc.logprob.rewriting import construct_ir_fgraph
from pymc.model import Model
from pymc.vartypes import continuous_types
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import discrete_dtypes

from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor


def refuse_variables(chosen: Sequence[Tensor], model: Model) -> None:
    """Refuse to sample what no gradient leads through.

    Parameters
    ----------
    chosen
        Value variables.

    Raises
    ------
    ModelError
        Naming the variables.
    """
    rv_names = {value: rv.name for rv, value in model.rvs_to_values.items()}
    if not chosen:
        raise ModelError("The model has no free variables to sample: add a prior, or pass vars.")
    counts = Counter(v.name for v in chosen)
    if twice := {name for name, n in counts.items() if n > 1}:
        clashing = ", ".join(rv_names[v] for v in chosen if v.name in twice)
        raise ModelError(
            f"{clashing}: their unconstrained values are all called {', '.join(sorted(twice))}. "
            "Give one of the variables another name."
        )
    discrete = [rv_names[v] for v in chosen if v.type.dtype in discrete_dtypes]
    if discrete:
        raise ModelError(
            f"{', '.join(discrete)}: discrete variables have no gradient. Name the continuous "
            "ones in the step's vars, and PyMC picks a step for the rest; or marginalise them "
            "(pymc_extras.marginalize)."
        )
    unfit = [rv_names[v] for v in chosen if v.type.dtype not in continuous_types]
    if unfit:
        raise ModelError(
            f"{', '.join(unfit)}: only float32 and float64 variables can be sampled. Write "
            "pytensor.config.floatX = 'float64', or give the variable a dtype."
        )
    simulated = [rv.name for rv in model.observed_RVs if isinstance(rv.owner.op, SimulatorRV)]
    if simulated:
        raise ModelError(
            f"{', '.join(simulated)}: a pm.Simulator has no likelihood, and so no gradient. Write "
            "pm.sample_smc()."
        )
    if massive := _with_point_masses([model.values_to_rvs[v] for v in chosen], model):
        raise ModelError(
            f"{', '.join(massive)}: single values have probability of their own, and no gradient "
            "leads to them. Sample what is censored, and clip it, pm.Deterministic(..., "
            "pm.math.clip(...)); choose between a value and a density by a pm.Bernoulli, which "
            "PyMC picks another step for."
        )


_MASSIVE = (MeasurableClip, MeasurableRound, DiracDeltaRV)
"""What has probability at single values, in the graphs that PyMC finds densities by."""


def _with_point_masses(rvs: Sequence[Tensor], model: Model) -> list[str]:
    """Names of variables that are clipped or rounded, or mixtures with a value, as hurdles are,
    whichever way they are written.
    """
    composed = [rv for rv in rvs if not isinstance(rv.owner.op, RandomVariable)]
    if not composed:
        return []
    graph = construct_ir_fgraph(dict(model.rvs_to_values))
    outputs = dict(zip(model.rvs_to_values, graph.outputs, strict=True))
    valued = {v for v in graph.variables if v.owner and isinstance(v.owner.op, ValuedRV)}
    found = []
    for rv in composed:
        # What others are, which it may depend on, is no part of it.
        parts = ancestors([outputs[rv]], blockers=valued - {outputs[rv]})
        if any(v.owner and isinstance(v.owner.op, _MASSIVE) for v in parts):
            found.append(str(rv.name))
    return found
