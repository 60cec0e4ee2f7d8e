# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""From a PyMC model to the log-density of one raveled, unconstrained vector.

The log-density contains everything PyMC puts into ``model.logp()``: priors, likelihoods,
Jacobian terms of the transforms, Potentials and imputed values. Data, other shared variables,
value variables that another step method samples, and large constants are explicit inputs of the
graph. Lengths of dimensions and sparse matrices are constants in it, and may not change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType, TensorType

from pymc_deer.graphs.canonical import canonical
from pymc_deer.graphs.checks import failures_rejected, parameters_checked
from pymc_deer.graphs.constants import folded, lifted
from pymc_deer.graphs.data_shapes import refuse_shapes
from pymc_deer.graphs.derivatives import HvpFunction, automatic_hvp, gradient
from pymc_deer.graphs.free_variables import refuse_variables
from pymc_deer.graphs.gradient_first import CHEAP, GradientFirst, common_parts
from pymc_deer.graphs.kernel_distances import distances_with_gradient
from pymc_deer.graphs.logistic import evaluated_once
from pymc_deer.graphs.lookups import lengths_looked_up, refuse_outside
from pymc_deer.graphs.named_axes import ARRAY_TYPES, array_like, named_as, without_names
from pymc_deer.graphs.row_order import RowOrder, in_fast_order
from pymc_deer.graphs.sums_by_group import summed_by_group_first
from pymc_deer.layout import Layout, Point, changed_shape, other_type
from pymc_deer.precision import added_in_float64, precision_of, with_float64_meant
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor


@dataclass(frozen=True)
class Density:
    """Symbolic log-density of the raveled vector x, with its gradient.

    Attributes
    ----------
    x
        Input, shape (D,).
    logp, dlogp
        Scalar, in float64, and shape (D,).
    params
        Inputs besides x, in the order in which :meth:`param_values` gives their values.
    hvp
        ``hvp(x, v)`` gives the Hessian of logp at x times v, symbolically, each of shape (D,).
    initial_point
        ``model.initial_point()``, which PyMC compiles anew each time.
    cheap
        Ops that logp repeats, rather than have what they computed for the gradient kept.
    """

    x: Tensor
    logp: Tensor
    dlogp: Tensor
    params: tuple[Tensor, ...]
    hvp: HvpFunction
    layout: Layout
    initial_point: Point = field(repr=False)
    _sources: tuple["Source", ...] = field(repr=False)
    _fixed: tuple["Length | SparseData", ...] = field(repr=False, default=())
    cheap: tuple[type[Op], ...] = CHEAP

    @property
    def size(self) -> int:
        """D, the dimension of x."""
        return self.layout.size

    @property
    def dtype(self) -> str:
        return self.x.type.dtype

    @property
    def n_numbers(self) -> int:
        """Numbers that an evaluation reads: the state, and the parameters."""
        return self.size + sum(int(np.prod(p.type.shape)) for p in self.params)  # type: ignore[arg-type]

    def param_values(self, point: Point) -> tuple[np.ndarray, ...]:
        """Current values of ``params``: data as it is now, other variables from `point`.

        Raises
        ------
        ModelError
            If the shape of data, a dimension that logp depends on, or a sparse matrix has changed
            since it was built, or data are indices of what is not there.
        """
        values = []
        for param, source in zip(self.params, self._sources, strict=True):
            given = _given(source, point)
            # Before it is put in order, which cuts what is too long.
            if given.shape != param.type.shape:
                raise changed_shape(param.name, param.type.shape, given.shape)
            # Other steps may give booleans for integers, say, and as indices those are masks.
            if given.dtype != (expected := param.type.numpy_dtype):
                if not np.can_cast(given.dtype, expected, "same_kind"):
                    raise other_type(param.name, expected, given.dtype)
                given = given.astype(expected)
            values.append(source.prepared(given) if isinstance(source, _Prepared) else given)
        for fixed in self._fixed:
            fixed.refuse_change()
        return tuple(values)

    def forget_data(self) -> None:
        """Read data anew, which may have been written to where they are."""
        for source in self._sources:
            if isinstance(source, _Prepared):
                source.forget()

    @property
    def constants(self) -> dict[Tensor, np.ndarray]:
        """Those of ``params`` whose values never change."""
        pairs = zip(self.params, self._sources, strict=True)
        return {p: np.asarray(source.data) for p, source in pairs if isinstance(source, Constant)}

    @cached_property
    def parts(self) -> list[Tensor]:
        """x, and what else logp follows from by little once the gradient is known."""
        return [self.x, *common_parts(self.x, self.logp, self.dlogp, self.cheap)]

    @property
    def single(self) -> GradientFirst:
        """Logp and gradient at one state x of shape (D,)."""
        return self._evaluated(partial(graph_replace, strict=False))

    @property
    def batch(self) -> GradientFirst:
        """Logp and gradient at each row of x: shapes (W,) and (W, D)."""
        return self._evaluated(vectorize_graph)

    def _evaluated(self, replace: Callable[..., list[Tensor]]) -> GradientFirst:
        return GradientFirst(
            lambda x: replace([self.logp, self.dlogp], {self.x: x}),
            lambda x: replace([self.dlogp, *self.parts], {self.x: x}),
            lambda parts: replace([self.logp], dict(zip(self.parts, parts, strict=True)))[0],
        )

    def single_hvp(self, x: Tensor, probes: Tensor) -> Tensor:
        """Hessian at x of shape (D,) times each row of `probes`, shape (P, D)."""
        n_probes = probes.type.shape[0]
        assert n_probes is not None
        # Data in float64 make it so, whatever the model's precision.
        return pt.stack([self.hvp(x, probes[p]).astype(self.dtype) for p in range(n_probes)])

    def batch_hvp(self, x: Tensor, probes: Tensor) -> Tensor:
        """Hessian at each row of x (W, D) times its probes (W or 1, P, D): shape (W, P, D).

        What depends on x alone is computed once a row, not once a probe.
        """
        v = self.x.type("v")
        product = self.hvp(self.x, v).astype(self.dtype)
        return vectorize_graph(product, {self.x: x[:, None, :], v: probes})


@dataclass
class _Prepared:
    """Data in another order; where they are indices, refused unless they fit an axis of `length`.

    The same array as long as the source gives the same one.
    """

    source: "SharedVariable | str"
    order: RowOrder
    length: int | None
    _last: tuple[np.ndarray, np.ndarray] | None = None

    def prepared(self, given: np.ndarray) -> np.ndarray:
        """What the source gives now, in order."""
        if self._last is None or self._last[0] is not given:
            if self.length is not None:
                refuse_outside(given, self.length, getattr(self.source, "name", None))
            self._last = given, self.order(given)
        return self._last[1]

    def forget(self) -> None:
        """Prepare what is given next, whether or not it is the same array."""
        self._last = None


@dataclass(frozen=True)
class Length:
    """A dimension's length that the log-density was built with."""

    name: str
    variable: SharedVariable
    value: int

    @property
    def constant(self) -> Tensor:
        """What is in the graph in its place."""
        return pt.constant(self.value, dtype=self.variable.dtype)

    def refuse_change(self) -> None:
        """Refuse another length than that."""
        if (now := int(self.variable.get_value(borrow=True))) != self.value:
            raise changed_shape(f"Dimension {self.name}", (self.value,), (now,))


@dataclass(frozen=True)
class SparseData:
    """A sparse matrix in a shared variable: no backend takes one as an input."""

    variable: SharedVariable
    value: Any

    @property
    def constant(self) -> Tensor:
        """What is in the graph in its place."""
        return self.variable.type.make_constant(self.value)

    def refuse_change(self) -> None:
        """Refuse another matrix than that."""
        now: Any = self.variable.get_value(borrow=True)
        if now is self.value or (now.shape == self.value.shape and not (now != self.value).nnz):
            return
        raise ModelError(
            f"{self.variable.name}: sparse data that changed since this step was made. Make the "
            "step anew, after the change."
        )


type Source = Constant | SharedVariable | str | _Prepared
"""Where the value of a parameter is from."""


def _given(source: Source, point: Point) -> np.ndarray:
    """Its value now, as the user or another step has given it."""
    if isinstance(source, _Prepared):
        return _given(source.source, point)
    if isinstance(source, str):
        # A copy: other steps may write into the array they gave out.
        return np.array(point[source])
    if isinstance(source, SharedVariable):
        value = source.get_value(borrow=True)
        if np.ma.is_masked(value):
            raise ModelError(
                f"{source.name}: missing values cannot be set. Give them with the data that the "
                "model is made of, observed=..., as NaN or masked: each is a variable then."
            )
        return np.asarray(value)
    return np.asarray(source.data)


@with_float64_meant
def build_density(
    model: Model,
    value_vars: Sequence[Tensor] | None = None,
    hvp: HvpFunction | None = None,
) -> Density:
    """Symbolic density of `value_vars` given everything else in the model.

    Parameters
    ----------
    model
        Any model whose chosen variables are continuous and whose logp is differentiable.
    value_vars
        Value variables to sample; all of the model's by default. The others become inputs.
    hvp
        Replaces automatic differentiation in Hessian-vector products: a callable
        ``(x, v) -> H v`` on symbolic vectors of shape (D,).

    Raises
    ------
    ModelError
        No variables, one that is discrete, empty or has point masses, a logp without gradient
        (naming the variable), data whose shapes do not fit, or indices of what is not there.
    """
    chosen = list(model.value_vars if value_vars is None else value_vars)
    refuse_variables(chosen, model)
    refuse_shapes(model)
    rv_names = {value: rv.name for rv, value in model.rvs_to_values.items()}
    point = model.initial_point()
    layout = Layout.of(chosen, point, model)
    if layout.size == 0:
        raise ModelError(f"{', '.join(layout.names)}: no elements, so there is nothing to sample.")
    dtype = precision_of(chosen)

    # The pre-gradient rewrites work on a copy of the graph, so inputs are named beforehand.
    model_logp = model.logp()
    shared = [v for v in ancestors([model_logp]) if isinstance(v, SharedVariable)]
    fixed = {data.variable: data for data in _fixed_data(model, shared)}
    sources = _graph_inputs(model, [v for v in shared if v not in fixed], chosen, point)
    values = [array_like(v) for v in chosen]
    inputs = dict(zip(chosen, values, strict=True)) | {s: p for s, p, _ in sources}
    replacements = {v: named_as(v, array) for v, array in inputs.items()}
    replacements |= {variable: data.constant for variable, data in fixed.items()}
    [logp] = without_names(graph_replace([model_logp], replacements, strict=False))
    data = {p: _given(origin, point) for _, p, origin in sources}
    # What another step moves stays within its support, and need not be looked at each time.
    of_user = {p: data[p] for s, p, _ in sources if isinstance(s, SharedVariable)}
    lengths = lengths_looked_up(logp, dict(zip(values, layout.shapes, strict=True)), of_user)
    logp = distances_with_gradient(logp)
    # PyMC's parameter checks become logp = -inf now, while the graph is that of one state: in a
    # batch, one check would speak for all states at once, and on Numba raise.
    [logp] = parameters_checked([rewrite_pregrad(logp.astype(dtype))], model)
    logp = evaluated_once(failures_rejected(canonical(logp), values))
    gradients = [gradient(logp, v, rv_names[c]) for v, c in zip(values, chosen, strict=True)]

    x = pt.tensor("x", dtype=dtype, shape=(layout.size,))
    unraveled = dict(zip(values, layout.unravel_symbolic(x).values(), strict=True))
    logp, dlogp = added_in_float64(logp), _ravel(gradients, dtype)
    # What variables' gradients have in common is one variable first: rewrites change parts of it
    # one by one, and what has become different stays so.
    logp, dlogp = canonical([logp, dlogp], "merge", "stabilize")
    logp, dlogp = graph_replace([logp, dlogp], unraveled, strict=False)
    # Static shapes become constants: vectorize_graph loses what follows from them, and JAX
    # cannot trace a shape computed in the graph.
    logp, dlogp = canonical([logp, dlogp], "ShapeOpt")
    outputs, orders = in_fast_order([logp, dlogp], data)
    [logp, dlogp], large = lifted(folded(summed_by_group_first(outputs)))
    dlogp = pt.specify_shape(dlogp, (layout.size,)) if dlogp.type.shape == (None,) else dlogp

    origins = {p: origin for _, p, origin in sources}
    origins |= {
        p: _Prepared(origins[p], orders.get(p, RowOrder()), lengths.get(p))
        for p in {**orders, **lengths}
    }
    params = [*origins.items(), *large]
    used = set(ancestors([logp, dlogp]))
    params = [(p, origin) for p, origin in params if p in used]
    return Density(
        x=x,
        logp=logp,
        dlogp=dlogp,
        params=tuple(p for p, _ in params),
        hvp=hvp or automatic_hvp(x, dlogp),
        layout=layout,
        initial_point=point,
        _sources=tuple(origin for _, origin in params),
        _fixed=tuple(fixed.values()),
    )


def _fixed_data(model: Model, shared: Sequence[SharedVariable]) -> Iterator["Length | SparseData"]:
    """Of shared variables, what no program takes as an input."""
    for name, length in model.dim_lengths.items():
        if length in shared:
            yield Length(str(name), length, int(length.get_value()))
    for variable in shared:
        if is_sparse(variable):
            yield SparseData(variable, variable.get_value(borrow=True))


def is_sparse(variable: Variable) -> bool:
    """Whether its values are sparse matrices."""
    # Sparse types are tensors' too, and their module takes a while to import.
    return isinstance(variable.type, TensorType) and not isinstance(variable.type, DenseTensorType)


def _graph_inputs(
    model: Model, shared: Sequence[SharedVariable], chosen: Sequence[Tensor], point: Point
) -> list[tuple[Tensor, Tensor, "SharedVariable | str"]]:
    """(variable in the model, fresh input of static shape, origin of its value)."""
    if any(isinstance(v.type, RandomType) for v in shared):
        raise ModelError(
            "logp draws random numbers, as pm.Minibatch does, and is another one each time: no "
            "chain has it for its posterior. Give all data, or approximate with pm.fit."
        )
    found = [v for v in shared if isinstance(v.type, ARRAY_TYPES)]
    found += [v for v in model.value_vars if v not in chosen]
    inputs = []
    for var in found:
        origin = var if isinstance(var, SharedVariable) else var.name
        value = _given(origin, point)
        inputs.append((var, array_like(var, value.shape), origin))
    return inputs


def _ravel(variables: Sequence[Tensor], dtype: str) -> Tensor:
    return pt.concatenate([v.ravel().astype(dtype) for v in variables])
