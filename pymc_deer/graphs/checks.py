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
from pytensor.compile.rewriting import rewrite_inner_graph
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, graph_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise

from pymc_deer.graphs.named_axes import without_names
from pymc_deer.typing import Tensor


def failures_rejected(logp: Tensor, states: Sequence[Tensor]) -> Tensor:
    """The same logp, minus infinity where a check of what depends on the states fails.

    Checks of anything else, such as data, stay and raise, and so do those inside loops but for the
    ones that belong to a distribution (:func:`parameters_checked`). JAX makes none of them.
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
    """The same values, minus infinity as PyMC's where a parameter fails a check, in loops too."""
    rewrite = local_remove_check_parameter
    if model.check_bounds:
        rewrite = local_check_parameter_to_ninf_switch
    rewritten: Any = rewrite_graph(
        list(values), include=(), custom_rewrite=_with_inner_graphs(rewrite), clone=True
    )
    return rewritten


def _with_inner_graphs(rewrite: Any) -> Any:
    """A rewrite of a graph's nodes and of those inside its Ops, such as loops."""
    of_nodes = dfs_rewriter(rewrite)

    def inside(linker: Any, op: Any, node: Any, inner: Any, *, mode: Any) -> None:
        of_all.rewrite(inner)

    @graph_rewriter
    def of_all(fgraph: Any) -> None:
        of_nodes.rewrite(fgraph)
        rewrite_inner_graph(fgraph, _has_inner_graph, inside)

    return of_all


def _has_inner_graph(op: Any) -> bool:
    return isinstance(op, HasInnerGraph) and hasattr(op, "clone_with_inner_graph")


def term_logps(model: Model, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Logp of each variable and Potential at a point, minus infinity where a check of it fails."""
    terms = [*model.basic_RVs, *model.potentials]
    logps: Any = model.logp(terms, sum=False)
    sums = parameters_checked(without_names([logp.sum() for logp in logps]), model)
    checked = [failures_rejected(logp, model.value_vars) for logp in sums]
    values: Any = model.compile_fn(checked, inputs=model.value_vars, on_unused_input="ignore")
    return dict(zip((term.name for term in terms), values(dict(point)), strict=True))
