"""Draws of whole stretches, with everything computed from them, a block at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.ops import ViewOp
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from xarray import DataTree

from pymc_deer.batches import in_batches
from pymc_deer.beside import Beside, InTurn
from pymc_deer.chains.chain import ChainRecord
from pymc_deer.chains.stretch import SolvedStretch
from pymc_deer.density import Density
from pymc_deer.graphs.checks import parameters_checked
from pymc_deer.graphs.constants import folded
from pymc_deer.graphs.each_row import at_each_row, bytes_of_largest
from pymc_deer.graphs.named_axes import named_as, without_names
from pymc_deer.graphs.python_ops import calls_python
from pymc_deer.stats import STATS
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

_BLOCK_BYTES = 2**21
"""What the draws of all chains in a block may take, computed values included."""

_BATCH = 1024
"""Draws for which values are computed in one call, but for large ones."""

_COMPUTED_BYTES = 2**23
"""What the largest array may take that is computed on the way, such as a covariance of each draw:
it should stay in a cache, and there are several."""


class Values:
    """What is recorded of each draw: the model's variables, and their values at given states.

    Parameters
    ----------
    model
        The model that is sampled.
    density
        What its draws are of: where the value variables lie in one.
    variables
        What to record, as functions of the value variables.
    n_chains
        Chains whose draws share a block.
    """

    def __init__(
        self, model: Model, density: Density, variables: Sequence[Tensor], n_chains: int
    ) -> None:
        layout = density.layout
        self.model = model
        self.initial_point = density.initial_point
        self.variables = list(variables)
        self.n_chains = n_chains
        single, x_of_one = _of_one_state(model, density, self.variables)
        _refuse_random(self.names, single)
        self.calls_python = calls_python(single)
        self._ravel = partial(layout.ravel, dtype=density.dtype)
        x = self._ravel(self.initial_point)
        self._at = at_each_row(dict(zip(self.names, single, strict=True)), x_of_one, x)
        of_one = self._at(x[None])
        self.shapes = {name: list(v.shape[1:]) for name, v in zip(self.names, of_one, strict=True)}
        n_bytes = sum(value.nbytes for value in of_one)
        most = _BLOCK_BYTES // (n_chains * (x.nbytes + n_bytes + 8 * len(STATS)))
        self.rows_per_block = max(1, most)
        largest = bytes_of_largest(single, x_of_one, x)
        self._batch = max(1, min(_BATCH, self.rows_per_block, _COMPUTED_BYTES // largest))

    @property
    def names(self) -> list[str]:
        return [str(variable.name) for variable in self.variables]

    @property
    def can_be_checked(self) -> bool:
        """Whether PyMC's convergence checks find something to look at: they fail if not."""
        return any(rv.name in self.names for rv in self.model.free_RVs)

    def at_point(self, **point: np.ndarray) -> list[np.ndarray]:
        """Values at one point, given by the names of the value variables, as PyMC's traces ask."""
        return [column[0] for column in self._at(self._ravel(point)[None])]

    def at(self, draws: np.ndarray, first: int) -> dict[str, np.ndarray]:
        """Values by name, (C, n, ...), at the states `draws`, (C, n, D), from draw `first` on."""
        n_chains, n, size = draws.shape
        rows = draws.swapaxes(0, 1).reshape(n * n_chains, size)
        columns = in_batches(self._at, rows, self._batch, first * n_chains)
        return {
            name: column.reshape(n, n_chains, *column.shape[1:]).swapaxes(0, 1)
            for name, column in zip(self.names, columns, strict=True)
        }


@dataclass(frozen=True)
class Piece:
    """Successive draws of all chains, and where they belong.

    Attributes
    ----------
    first
        Number of the first of them, counted from the first one of warm-up.
    tuning
        Whether they belong to warm-up.
    draws
        States, (C, n, D).
    stats
        Statistics by name, (C, n).
    """

    first: int
    tuning: bool
    draws: np.ndarray
    stats: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, first: int, stretches: Sequence[SolvedStretch], *, tuning: bool) -> "Piece":
        """A stretch of each chain."""
        draws = np.stack([stretch.draws for stretch in stretches])
        of_all = draws.shape[:2]
        stats = {stat.name: np.empty(of_all, stat.dtype) for stat in STATS}
        for chain, stretch in enumerate(stretches):
            for name, column in {**stretch.columns, "tune": tuning}.items():
                stats[name][chain] = column
        return cls(first, tuning, draws, stats)

    @property
    def end(self) -> int:
        """Number of the draw behind the last."""
        return self.first + self.draws.shape[1]

    def cut(self, most: int) -> "Iterator[Piece]":
        """Pieces of at most so many draws."""
        for i in range(0, self.draws.shape[1], most):
            rows = slice(i, i + most)
            stats = {name: column[:, rows] for name, column in self.stats.items()}
            yield Piece(self.first + i, self.tuning, self.draws[:, rows], stats)

    @classmethod
    def joined(cls, pieces: "Sequence[Piece]") -> "Piece":
        """Pieces of one phase that follow on one another."""
        first, *others = pieces
        if not others:
            return first
        draws = np.concatenate([piece.draws for piece in pieces], axis=1)
        stats = {
            name: np.concatenate([piece.stats[name] for piece in pieces], axis=1)
            for name in first.stats
        }
        return cls(first.first, first.tuning, draws, stats)


@dataclass(frozen=True)
class Ending:
    """How a run has ended, and what is to be said of it.

    Attributes
    ----------
    attrs
        Attributes of its statistics.
    seconds
        What it has taken.
    compute_convergence_checks, quiet
        As in `pm.sample`.
    """

    attrs: Mapping[str, Any]
    seconds: float
    compute_convergence_checks: bool
    quiet: bool


@dataclass(frozen=True)
class _Waiting:
    """Draws that are not written yet, from draw number `first` on."""

    first: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.pieces[-1].end if self.pieces else self.first


class Recorder(ABC):
    """Takes draws, a stretch of all chains at a time, and writes them in blocks.

    It does so in a thread: while a block is computed and written, the next draws are made.

    Parameters
    ----------
    values
        What is recorded.
    first
        Draws of each chain, those of warm-up included, that are dealt with already.
    keeps_warmup
        Whether draws of warm-up are written. If not, nothing is computed of them.
    """

    def __init__(self, values: Values, first: int = 0, *, keeps_warmup: bool) -> None:
        self.values = values
        self._keeps_warmup = keeps_warmup
        self._waiting = _Waiting(first)
        self._beside = InTurn() if values.calls_python else Beside()

    @property
    def n_done(self) -> int:
        """Draws of each chain that are handed over, or not to be: those of warm-up included."""
        return self._waiting.first

    @property
    def has_draws(self) -> bool:
        """Whether a run that ends now has something to return, or to go on from."""
        return True

    def record(
        self, stretches: Sequence[SolvedStretch], records: Sequence[ChainRecord], *, tuning: bool
    ) -> None:
        """Take a stretch of each chain.

        Parameters
        ----------
        records
            Where the chains stand behind it, for recorders from which a run can go on.
        """
        waiting = self._waiting
        if tuning and not self._keeps_warmup:
            self._waiting = _Waiting(waiting.end + len(stretches[0]))
            return
        if waiting.pieces and waiting.pieces[0].tuning != tuning:
            self._hand_over(self._write_all)
            waiting = self._waiting
        waiting.pieces.append(Piece.of(waiting.end, stretches, tuning=tuning))
        if waiting.end - waiting.first >= self.values.rows_per_block:
            self._hand_over(self._write_all)

    def flush(self) -> None:
        """Have all draws written."""
        self._hand_over(self._write_all)
        self._beside.wait()

    def close(self) -> None:
        """Give back what was taken from the system, however the run has ended."""
        self._beside.close()

    def _hand_over(self, take: Callable[[Sequence[Piece]], None]) -> None:
        """Have the pieces that wait taken in the thread.

        Interrupted, they are handed over again, and written to the same places.
        """
        waiting = self._waiting
        self._beside.do(partial(take, waiting.pieces))
        self._waiting = _Waiting(waiting.end)

    def _write_all(self, pieces: Sequence[Piece]) -> None:
        if pieces:
            for block in Piece.joined(pieces).cut(self.values.rows_per_block):
                self._write(block, self.values.at(block.draws, block.first))

    @abstractmethod
    def finished(self, ending: Ending) -> DataTree:
        """What `pm.sample` returns, of the draws that are written."""

    @abstractmethod
    def _write(self, piece: Piece, values: Mapping[str, np.ndarray]) -> None:
        """Write draws to where their numbers say, with `values` by name, (C, n, ...)."""


def traced(
    model: Model, var_names: Sequence[str] | None, *, transformed: bool = False
) -> list[Tensor]:
    """What is recorded of a draw: those variables, or all that are unobserved.

    In PyMC's order; with the values of `transformed` ones as well, or without.
    """
    if var_names is not None:
        return model.replace_rvs_by_values([v for v in model.unobserved_RVs if v.name in var_names])
    constrained = {variable.name for variable in model.unobserved_RVs}
    return [v for v in model.unobserved_value_vars if transformed or v.name in constrained]


def _refuse_random(names: Sequence[str], values: Sequence[Tensor]) -> None:
    """Refuse values that are not those of the state alone: all draws would have the same numbers.

    Raises
    ------
    ModelError
        Naming the first.
    """
    for name, value in zip(names, values, strict=True):
        if any(isinstance(v.type, RandomType) for v in ancestors([value])):
            raise ModelError(
                f"{name}: it draws random numbers, and what is recorded follows from the draw. "
                "Leave it out of var_names, and call pm.sample_posterior_predictive(idata, "
                f"var_names=[{name!r}]) on what sample returns."
            )


def _without_views(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same without the views that Deterministics are: vectorised, one is taken row by row."""
    graph: Any = FunctionGraph(
        outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False
    )
    for node in graph.toposort():
        if isinstance(node.op, ViewOp):
            graph.replace(node.outputs[0], node.inputs[0])
    return graph.outputs


def _of_one_state(
    model: Model, density: Density, variables: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Values of the variables at a raveled state, and that state, (D,)."""
    layout = density.layout
    x = pt.vector("x", dtype=density.dtype, shape=(layout.size,))
    values = layout.unravel_symbolic(x)
    inputs = {v: named_as(v, values[v.name]) for v in model.value_vars}
    replaced = graph_replace(list(variables), inputs, strict=False)
    single = folded(without_names(_without_views(replaced)))
    # In a batch, one check of parameters would speak for all draws at once.
    return parameters_checked(single, model), x
