"""Draws of whole stretches, with everything computed from them, in PyMC's own trace."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from pytensor.graph.replace import graph_replace, vectorize_graph

from pymc_deer.density import Layout
from pymc_deer.stats import STATS
from pymc_deer.stretch import SolvedStretch
from pymc_deer.typing import Tensor

# Each Op is one call of NumPy for a whole stretch of draws: there is no loop to compile.
_MODE = "FAST_COMPILE"


class StretchTrace(NDArray):
    """One chain's trace, which records a stretch at a time."""

    def record_stretch(self, values: Sequence[np.ndarray], stats: dict[str, np.ndarray]) -> None:
        """Append draws.

        Parameters
        ----------
        values
            Of each traced variable, (n, ...).
        stats
            Sample statistics by name, (n,) or the same for all draws.
        """
        rows = slice(self.draw_idx, self.draw_idx + len(values[0]))
        for name, value in zip(self.varnames, values, strict=True):
            self.samples[name][rows] = value
        for name, column in stats.items():
            self._recorded[name][rows] = column
        self.draw_idx = rows.stop

    @property
    def _recorded(self) -> dict[str, np.ndarray]:
        """The statistics so far: those of one step method."""
        assert self._stats is not None
        return self._stats[0]


class Recorder:
    """Traces of C chains, and the function that gives them their values.

    Parameters
    ----------
    model
        The model that is sampled.
    layout
        Where its value variables lie in a draw.
    var_names
        What to record; all unobserved variables and Deterministics by default.
    n_chains, n_draws
        Number of chains, and of draws of each.
    """

    def __init__(
        self,
        model: Model,
        layout: Layout,
        var_names: Sequence[str] | None,
        n_chains: int,
        n_draws: int,
    ) -> None:
        variables = _traced(model, var_names)
        one = model.compile_fn(
            variables,
            inputs=model.value_vars,
            point_fn=False,
            on_unused_input="ignore",
            mode=_MODE,
        )
        self._values = _vectorized(model, layout, variables)
        self.traces = []
        for chain in range(n_chains):
            trace = StretchTrace(model=model, vars=variables, fn=one)
            trace.setup(n_draws, chain, [{stat.name: stat.dtype for stat in STATS}])
            self.traces.append(trace)

    def closed(self) -> list[StretchTrace]:
        """The traces, each with as many draws as all of them have."""
        n_draws = min(trace.draw_idx for trace in self.traces)
        for trace in self.traces:
            trace.draw_idx = n_draws
            trace.close()
        return self.traces

    def record(self, stretches: Sequence[SolvedStretch], *, tuning: bool) -> None:
        """Append a stretch of each chain."""
        for trace, stretch in zip(self.traces, stretches, strict=True):
            values = self._values(stretch.draws)
            trace.record_stretch(values, {**stretch.columns, "tune": tuning})


def _traced(model: Model, var_names: Sequence[str] | None) -> list[Tensor]:
    if var_names is None:
        return model.unobserved_value_vars
    return model.replace_rvs_by_values([v for v in model.unobserved_RVs if v.name in var_names])


def _vectorized(model: Model, layout: Layout, variables: Sequence[Tensor]) -> Any:
    """Values of the variables at each row of (n, D): a list of (n, ...)."""
    dtype = np.result_type(*layout.dtypes).name
    x = pt.vector("x", dtype=dtype, shape=(layout.size,))
    rows = pt.matrix("rows", dtype=dtype, shape=(None, layout.size))
    values = layout.unravel_symbolic(x)
    inputs = {variable: values[variable.name] for variable in model.value_vars}
    single: list[Tensor] = graph_replace(list(variables), inputs, strict=False)
    # What does not depend on the draw is the same for all.
    batch = [
        v if v.type.ndim > s.type.ndim else pt.broadcast_to(v, (rows.shape[0], *s.shape))
        for v, s in zip(vectorize_graph(single, {x: rows}), single, strict=True)
    ]
    return pytensor.function([rows], batch, mode=_MODE, on_unused_input="ignore")
