"""What a gradient consists of: matrix products, elementwise work, indexing, and who runs each.

The operations are counted, not timed: no backend keeps the nodes of a graph apart, each fuses them
in its own way. A count is a property of the model and the same everywhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pytensor.scalar as ps
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.scan.op import Scan
from pytensor.tensor import basic, blockwise, elemwise, extra_ops, linalg, subtensor
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.type import TensorType
from threadpoolctl import ThreadpoolController

from pymc_deer.density import Density
from pymc_deer.graphs.canonical import canonical
from pymc_deer.options import BackendName
from pymc_deer.typing import Tensor

FUNCTION_COST = 20
"""Operations that a transcendental function of one number counts as: an exponential takes a
compiled loop about as long as so many multiplications, a logarithm twice as long, where it is
called for one number at a time, and a third of it for several."""

_PLAIN = (
    *(ps.Add, ps.Sub, ps.Mul, ps.TrueDiv, ps.IntDiv, ps.Mod, ps.Neg, ps.Abs, ps.Sign, ps.Sqr),
    *(ps.Sqrt, ps.Reciprocal, ps.Maximum, ps.Minimum, ps.ScalarMaximum, ps.ScalarMinimum, ps.Clip),
    *(ps.Switch, ps.Cast, ps.Identity, ps.Second, ps.Ceil, ps.Floor, ps.Trunc),
    *(ps.LogicalComparison, ps.FixedLogicalComparison, ps.UnaryBitOp, ps.BinaryBitOp),
    *(ps.IsNan, ps.IsInf),
)
"""Scalar operations that processors have an instruction for, or nearly so."""

_PRODUCTS = (Dot, BatchedDot)
_SOLVES = (linalg.SolveTriangular, linalg.CholeskySolve)
_FACTORIZATIONS = (
    *(linalg.Cholesky, linalg.LU, linalg.LUFactor, linalg.QR, linalg.SVD, linalg.Eig, linalg.Eigh),
    *(linalg.Eigvalsh, linalg.Det, linalg.SLogDet, linalg.MatrixInverse, linalg.MatrixPinv),
    *(linalg.Expm, linalg.Schur, linalg.Lstsq, linalg.Solve),
)
_ELEMENTWISE = (elemwise.CAReduce, extra_ops.CumOp, Argmax)
_COPIES = (
    *(subtensor.IncSubtensor, subtensor.AdvancedSubtensor, subtensor.AdvancedIncSubtensor),
    *(basic.Join, basic.Split, basic.Alloc, basic.Eye, basic.ARange, basic.ExtractDiag),
    *(extra_ops.Repeat,),
)
_FREE = (
    *(elemwise.DimShuffle, subtensor.Subtensor, Reshape, SpecifyShape, Shape, Shape_i),
    *(basic.MakeVector, basic.TensorFromScalar, basic.ScalarFromTensor),
    *(basic.AllocEmpty, JoinDims, SplitDims),
)
"""Views, shapes and single numbers."""

_REWRITES = ("stabilize", "specialize")
"""What every backend does to a canonical graph, short of fusing its nodes and of calling BLAS by
name."""


@dataclass(frozen=True)
class Work:
    """Operations of one logp and gradient, by kind.

    Attributes
    ----------
    matrix
        Multiplications and additions of matrix products, solves and factorizations.
    elementwise
        Operations element by element, and sums over elements; a transcendental function counts as
        `FUNCTION_COST`.
    indexing
        Numbers that are gathered, scattered or copied.
    other
        Numbers that come out of anything else.
    """

    matrix: float = 0.0
    elementwise: float = 0.0
    indexing: float = 0.0
    other: float = 0.0

    def __add__(self, more: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    def times(self, n: float) -> "Work":
        """The same n times over."""
        return Work(*(n * getattr(self, f.name) for f in fields(self)))

    @property
    def total(self) -> float:
        """All operations."""
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def shares(self) -> dict[str, float]:
        """Each kind's share of the total, from 0 to 1; all 0 if there is no work."""
        total = self.total or 1.0
        return {f.name: getattr(self, f.name) / total for f in fields(self)}


@dataclass(frozen=True)
class Libraries:
    """What runs each kind of work on one backend and device."""

    device: str
    matrix: str
    elementwise: str
    indexing: str


def count_gradient(density: Density) -> Work:
    """Operations of one logp and gradient of the density."""
    return count_work([density.logp, density.dlogp])


def count_work(outputs: Sequence[Tensor]) -> Work:
    """Operations that it takes to compute `outputs`, from the shapes in their graph.

    Loops are followed into, and count as often as they run. A length that does not follow from
    the shapes of the inputs counts as 1.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> data, beta = pt.tensor("data", shape=(100, 3)), pt.tensor("beta", shape=(3,))
    >>> count_work([pt.exp(data @ beta)])
    Work(matrix=600.0, elementwise=2000.0, indexing=0.0, other=0.0)
    """
    steps = _steps(_graph_of(outputs))
    return sum((_of_core(op, node, sizes).times(n) for n, op, node, sizes in steps), Work())


class Unequal(NamedTuple):
    """What one logp and gradient do that XLA and Numba are not equally good at.

    Attributes
    ----------
    indexed
        Numbers gathered or scattered by arrays of indices.
    functions
        Exponentials, logarithms and the like.
    factored
        Multiplications of factorizations and of solves.
    """

    indexed: float
    functions: float
    factored: float


def count_unequal(density: Density) -> Unequal:
    """See :class:`Unequal`."""
    indexed = functions = factored = 0.0
    for n, op, node, sizes in _steps(_graph_of([density.logp, density.dlogp])):
        if _is_indexed(op):
            indexed += n * _copied(op, node, sizes)
        elif isinstance(op, elemwise.Elemwise):
            functions += n * sizes.of(node.outputs[0]) * _n_functions(op.scalar_op)
        elif isinstance(op, (*_SOLVES, *_FACTORIZATIONS)):
            factored += n * _of_core(op, node, sizes).matrix
    return Unequal(indexed, functions, factored)


def count_constants(density: Density) -> int:
    """Numbers of the data that are constants in the density's graph, not parameters of it."""
    graph = FunctionGraph(outputs=[density.logp, density.dlogp], clone=False)
    constants = [v for v in graph.variables if isinstance(v, Constant)]
    return sum(int(np.size(v.data)) for v in constants if np.ndim(v.data) and np.size(v.data) > 1)


def libraries(backend: BackendName, device: str) -> Libraries:
    """What runs each kind of work.

    Parameters
    ----------
    backend
        ``numba`` or ``jax``.
    device
        ``cpu``; anything else is a GPU.
    """
    if backend == "numba":
        return Libraries(device, _blas(), "Numba (LLVM)", "Numba (LLVM)")
    if device == "cpu":
        return Libraries(device, "XLA (Eigen, LAPACK)", "XLA", "XLA")
    return Libraries(device, "XLA (cuBLAS, cuSOLVER)", "XLA (CUDA)", "XLA (CUDA)")


def _blas() -> str:
    """The BLAS that Numba calls, which is SciPy's, by the name that it gives itself."""
    pools = [p for p in ThreadpoolController().info() if p["user_api"] == "blas"]
    pools.sort(key=lambda p: "scipy.libs" not in p["filepath"])
    if not pools:
        return "BLAS"
    return f"BLAS ({pools[0]['internal_api']} {pools[0]['version']})"


def _graph_of(outputs: Sequence[Tensor]) -> Any:
    """The graph that every backend makes of `outputs`, before each goes its own way."""
    # What needs a C compiler is PyTensor's own backend's, and asks for its BLAS.
    rewritten = canonical(list(outputs), *_REWRITES, but=("cxx_only",), clone=True)
    return FunctionGraph(outputs=rewritten, clone=False)


def _steps(graph: Any, times: float = 1.0) -> Iterator[tuple[float, Any, Apply, "_Sizes"]]:
    """How often each Op runs, the Op for a single matrix or array, its node, and the sizes."""
    nodes: list[Apply] = graph.toposort()
    sizes = _Sizes(nodes)
    for node in nodes:
        op: Any = node.op
        if isinstance(op, Scan):
            yield from _steps(op.fgraph.unfreeze(), times * sizes.number(node.inputs[0]))
        elif isinstance(op, blockwise.Blockwise):
            yield times, op.core_op, node, sizes
        elif isinstance(op, HasInnerGraph):
            yield from _steps(_inside(op.fgraph, node, sizes), times)
        else:
            yield times, op, node, sizes


def _inside(graph: Any, node: Apply, sizes: "_Sizes") -> Any:
    """The graph inside an Op that runs it once, for arrays as long as those that it is given."""
    given = [
        v.type.clone(shape=sizes.known(v))() if isinstance(v.type, TensorType) else v.type()
        for v in node.inputs
    ]
    return FunctionGraph(given, graph.bind(given), clone=False)


def _of_core(op: Any, node: Apply, sizes: "_Sizes") -> Work:
    """Operations of an Op on matrices or arrays; leading dimensions are a batch."""
    out = sizes.of(node.outputs[0])
    if isinstance(op, elemwise.Elemwise):
        return Work(elementwise=out * _scalar_cost(op.scalar_op, len(node.inputs)))
    if isinstance(op, _PRODUCTS):
        # Twice the length of the axis that is summed over, for each number that comes out.
        return Work(matrix=2.0 * out * sizes.shape(node.inputs[0])[-1])
    if isinstance(op, linalg.SolveTriangular):
        # n^2 for each right-hand side, of which there are out / n.
        return Work(matrix=float(out * sizes.shape(node.inputs[0])[-1]))
    if isinstance(op, linalg.CholeskySolve):
        # The same twice.
        return Work(matrix=2.0 * out * sizes.shape(node.inputs[0])[-1])
    if isinstance(op, _FACTORIZATIONS):
        batch, n = sizes.of(node.inputs[0]), sizes.shape(node.inputs[0])[-1]
        return Work(matrix=float(batch * n))
    if isinstance(op, _ELEMENTWISE):
        return Work(elementwise=float(sizes.of(node.inputs[0])))
    if isinstance(op, _COPIES):
        return Work(indexing=float(_copied(op, node, sizes)))
    if isinstance(op, _FREE):
        return Work()
    return Work(other=float(sum(map(sizes.of, node.outputs))))


def _copied(op: Any, node: Apply, sizes: "_Sizes") -> int:
    """Numbers that move: what is put in, else what comes out."""
    if isinstance(op, subtensor.IncSubtensor | subtensor.AdvancedIncSubtensor):
        return sizes.of(node.inputs[1])
    return sum(map(sizes.of, node.outputs))


def _is_indexed(op: Any) -> bool:
    return isinstance(op, subtensor.AdvancedSubtensor | subtensor.AdvancedIncSubtensor)


def _scalar_cost(op: Any, n_inputs: int) -> float:
    if isinstance(op, ps.Composite):
        return sum(_scalar_cost(node.op, len(node.inputs)) for node in op.fgraph.apply_nodes)
    if isinstance(op, ps.Add | ps.Mul):
        return n_inputs - 1.0
    return FUNCTION_COST if _n_functions(op) else 1.0


def _n_functions(op: Any) -> int:
    if isinstance(op, ps.Composite):
        return sum(_n_functions(node.op) for node in op.fgraph.apply_nodes)
    return 0 if isinstance(op, _PLAIN) else 1


class _Sizes:
    """Shapes in a graph: static ones, and those that follow from static ones."""

    def __init__(self, nodes: Iterable[Apply]) -> None:
        unknown = [
            v
            for node in nodes
            for v in (*node.inputs, *node.outputs)
            if isinstance(v.type, TensorType) and None in v.type.shape
        ]
        unknown = list(dict.fromkeys(unknown))
        self._found = dict(zip(unknown, _folded_shapes(unknown), strict=True))

    def known(self, variable: Any) -> tuple[int | None, ...]:
        """Lengths of the variable's axes, None where one does not follow from shapes."""
        if not isinstance(variable.type, TensorType):
            return ()
        return self._found.get(variable, variable.type.shape)

    def shape(self, variable: Any) -> tuple[int, ...]:
        """Lengths of the variable's axes, 1 where one does not follow from shapes."""
        return tuple(1 if n is None else n for n in self.known(variable))

    def of(self, variable: Any) -> int:
        """Elements of the variable."""
        return int(np.prod(self.shape(variable)))

    def number(self, variable: Any) -> int:
        """Value of an integer, 1 if it does not follow from shapes."""
        [value] = constant_fold([variable], raise_not_constant=False)
        n = _number(value)
        return 1 if n is None else n


def _folded_shapes(variables: Sequence[Any]) -> list[tuple[int | None, ...]]:
    if not variables:
        return []
    lengths = [v.shape[i] for v in variables for i in range(v.type.ndim)]
    numbers = iter(constant_fold(lengths, raise_not_constant=False))
    return [tuple(_number(next(numbers)) for _ in range(v.type.ndim)) for v in variables]


def _number(folded: Any) -> int | None:
    return int(folded) if isinstance(folded, np.ndarray) else None
