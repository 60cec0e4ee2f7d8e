"""Data whose shapes do not fit each other, seen before anything is compiled."""

from contextlib import suppress
from typing import Any

import pytensor
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_deer.graphs.named_axes import ARRAY_TYPES, array_like, named_as
from pymc_deer.modes import OwnMode
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

_AS_WRITTEN = OwnMode(linker="py", optimizer="merge")


def refuse_shapes(model: Model) -> None:
    """Refuse `pm.Data` with which a term of logp cannot be computed, as after half a change.

    Compiled, such a model fails anywhere, with what every rewrite has to say of it.

    Raises
    ------
    ModelError
        Naming the term, and the data that it is computed from with their shapes.
    """
    if not any(isinstance(var, SharedVariable) for var in model.named_vars.values()):
        return
    variables = [*model.basic_RVs, *model.potentials]
    terms: Any = model.logp(vars=variables, sum=False)
    for variable, term in zip(variables, terms, strict=True):
        data = {source: source.get_value(borrow=True).shape for source in _data_of(term)}
        shaped = {s: named_as(s, array_like(s, shape)) for s, shape in data.items()}
        try:
            # Whoever is made of inputs of other shapes looks whether they fit.
            clone_replace([term], shaped, rebuild_strict=False)
        except (TypeError, ValueError) as error:
            if not _can_be_computed(term, model):
                shapes = ", ".join(f"{source.name} {shape}" for source, shape in data.items())
                raise ModelError(
                    f"{variable.name}: its logp cannot be computed with data of these shapes: "
                    f"{shapes} ({error}). Set all that belong together, "
                    "pm.set_data({NAME: VALUES, ...})."
                ) from error


def _data_of(term: Tensor) -> list[Any]:
    return [
        source
        for source in ancestors([term])
        if isinstance(source, SharedVariable) and isinstance(source.type, ARRAY_TYPES)
    ]


def _can_be_computed(term: Tensor, model: Model) -> bool:
    """Whether it was only an Op that does not take inputs of other types than it was made for."""
    point = model.initial_point()
    inputs = [value for value in model.value_vars if value in set(ancestors([term]))]
    function: Any = pytensor.function(inputs, term, mode=_AS_WRITTEN)
    try:
        # Names of axes are lowered when a model is compiled: as written, nothing computes them.
        with suppress(NotImplementedError):
            function(*(point[value.name] for value in inputs))
    except (IndexError, TypeError, ValueError):
        return False
    return True
