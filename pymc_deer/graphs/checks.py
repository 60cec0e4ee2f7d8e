"""Checks that a model makes while it computes: a state that fails one is outside the support.

PyMC makes minus infinity of those that belong to a distribution. What is left would raise, on Numba
in the middle of a run, and on JAX not at all: these are `pytensor.raise_op.Assert` and parameter
checks of other libraries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import (
    local_check_parameter_to_ninf_switch,
    local_remove_check_parameter,
)
from pymc.model import Model
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise

from pymc_deer.graphs.named_axes import without_names
from pymc_deer.typing import Tensor


def failures_rejected(logp: Tensor, states: Sequence[Tensor]) -> Tensor:
    """The same logp, minus infinity where a check of what depends on the states fails.

    Checks of anything else, such as data, stay and raise. Those inside loops stay too: of them
    Numba's mode rewrites the ones that belong to a distribution, and JAX makes no checks.
    """
    graph: Any = FunctionGraph(outputs=[logp], clone=True, copy_inputs=False, copy_orphans=False)
    conditions = []
    for node in graph.toposort():
        if isinstance(node.op, CheckAndRaise):
            value, *checked = node.inputs
            of_states = [c for c in checked if not set(states).isdisjoint(ancestors([c]))]
            others = [c for c in checked if c not in of_states]
            graph.replace(node.outputs[0], node.op(value, *others) if others else value)
            conditions += map(pt.as_tensor, of_states)
    [made] = graph.outputs
    return pt.switch(pt.all(pt.stack(conditions)), made, -np.inf) if conditions else made


def parameters_checked(values: Sequence[Tensor], model: Model) -> list[Tensor]:
    """The same values, minus infinity where PyMC's traces have it: a parameter fails a check."""
    rewrite = local_remove_check_parameter
    if model.check_bounds:
        rewrite = local_check_parameter_to_ninf_switch
    rewritten: Any = rewrite_graph(
        list(values), include=(), custom_rewrite=dfs_rewriter(rewrite), clone=True
    )
    return rewritten


def term_logps(model: Model, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Logp of each variable and Potential at a point, minus infinity where a check of it fails."""
    terms = [*model.basic_RVs, *model.potentials]
    logps: Any = model.logp(terms, sum=False)
    sums = without_names([logp.sum() for logp in logps])
    checked = [failures_rejected(logp, model.value_vars) for logp in sums]
    values: Any = model.compile_fn(checked, inputs=model.value_vars, on_unused_input="ignore")
    return dict(zip((term.name for term in terms), values(dict(point)), strict=True))
