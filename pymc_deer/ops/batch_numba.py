"""Numba implementation of :class:`~pymc_deer.ops.batch.BatchMap`: blocks of states over threads."""

from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key

from pymc_deer.ops.batch import BatchMap
from pymc_deer.ops.inline_numba import function_of_graph, inlined
from pymc_deer.ops.numba_source import from_source

_TEMPLATE = """
def batch_map(block, {arguments}):
    width = {first}.shape[0]
    block = max(1, min(block.item(), width))
    n_blocks = (width + block - 1) // block
    {allocate}
    for i in {range}(n_blocks):
        lo = i * block
        hi = min(lo + block, width)
        {evaluate}
    return {outputs}
"""

_ONLY_PRANGE = {
    "comprehension": False,
    "fusion": False,
    "inplace_binop": False,
    "numpy": False,
    "prange": True,
    "reduction": False,
    "setitem": False,
    "stencil": False,
}
"""Parallelise the loop over blocks and nothing else: array expressions compile faster serially."""


@register_funcify_and_cache_key(BatchMap)
def numba_funcify_batch_map(op: BatchMap, node: object = None, **kwargs: object):
    inner, inner_key = function_of_graph(op.fgraph, fgraph_name="batch_map_inner")
    source = _source(op)
    # What threads run, Numba makes a function of its own.
    inner = inner if op.threaded else inlined(inner)
    options = {"parallel": _ONLY_PRANGE} if op.threaded else {}
    return from_source("batch_map", source, inner, inner_key, **options)


def _source(op: BatchMap) -> str:
    mapped = [f"mapped_{i}" for i in range(op.n_mapped)]
    shared = [f"shared_{i}" for i in range(len(op.input_types) - op.n_mapped)]
    outputs = [f"output_{i}" for i in range(len(op.output_types))]
    vectorized = op.batching == "vectorized"

    core_shapes = [t.shape[1:] if vectorized else t.shape for t in op.output_types]
    allocate = [
        f"{name} = np.empty((width, {''.join(f'{n}, ' for n in shape)}), dtype=np.{t.dtype})"
        for name, shape, t in zip(outputs, core_shapes, op.output_types, strict=True)
    ]
    if vectorized:
        call = ", ".join([f"{name}[lo:hi]" for name in mapped] + shared)
        evaluate = [f"result = inner({call})"]
        evaluate += [
            line
            for i, (name, shape) in enumerate(zip(outputs, core_shapes, strict=True))
            for line in _copy_rows(name, f"result[{i}]", shape)
        ]
    else:
        # Scalars travel as 0-d arrays between PyTensor's Numba functions.
        rows = [
            f"{name}[t]" if inner.ndim else f"np.asarray({name}[t])"
            for name, inner in zip(mapped, op.input_types, strict=False)
        ]
        evaluate = ["for t in range(lo, hi):", f"    result = inner({', '.join(rows + shared)})"]
        evaluate += [
            f"    {name}[t] = result[{i}]{'' if shape else '.item()'}"
            for i, (name, shape) in enumerate(zip(outputs, core_shapes, strict=True))
        ]
    return _TEMPLATE.format(
        range="numba.prange" if op.threaded else "range",
        arguments=", ".join(mapped + shared),
        first=mapped[0],
        allocate="\n    ".join(allocate),
        evaluate="\n        ".join(evaluate),
        outputs=", ".join(outputs),
    )


def _copy_rows(to: str, rows: str, shape: tuple[int, ...]) -> list[str]:
    """Copy a block's rows in loops: an assignment checks shapes, and compiles longer."""
    loops = ["hi - lo", *map(str, shape)]
    indices = [f"i_{axis}" for axis in range(len(loops))]
    nested = [
        f"{'    ' * depth}for {index} in range({n}):"
        for depth, (index, n) in enumerate(zip(indices, loops, strict=True))
    ]
    at = ", ".join(["lo + i_0", *indices[1:]])
    return [*nested, f"{'    ' * len(loops)}{to}[{at}] = {rows}[{', '.join(indices)}]"]
