"""The model that is sampled, and which of its variables, unless the user names some."""

from typing import Any, cast

from pymc.model import BaseModel, Model, modelcontext
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence
from pymc.util import get_value_vars_from_user_vars

from pymc_deer.status import ModelError, OptionError, invalid_option
from pymc_deer.typing import Tensor


def given_model(model: Any, sampler: str) -> Model:
    """The model that was given, or that of the context.

    Parameters
    ----------
    sampler
        Who asks, for the message.

    Raises
    ------
    OptionError
        If it is none.
    TypeError
        PyMC's, if there is no context.
    """
    found = modelcontext(model)
    if not isinstance(found, BaseModel):
        raise invalid_option(sampler, "model", found, "a PyMC model")
    return cast(Model, found)


def continuous_variables(model: Model, sampler: str) -> list[Tensor]:
    """Value variables of the model's free variables that have a gradient, and no step of their own.

    Where a library registers a step method that is ideal for its kind of variable, logp may not
    have all that is known of it: the prior of pymc-bart's trees is in their step alone.

    Parameters
    ----------
    sampler
        Who asks, for the message.

    Raises
    ------
    ModelError
        If there is none.
    """
    chosen = [
        value
        for value in model.continuous_value_vars
        if not _has_ideal_step(model.values_to_rvs[value])
    ]
    if not chosen:
        raise ModelError(
            "The model has no continuous free variables (float32 or float64): "
            f"{sampler} has nothing to sample."
        )
    return chosen


def chosen_variables(vars: Any, model: Model, sampler: str) -> list[Tensor]:
    """Value variables of those that the user names, or of all continuous ones by default.

    Parameters
    ----------
    vars
        One variable or several, by themselves or by their names; None is for the default.
    sampler
        Who asks, for the message.

    Raises
    ------
    OptionError
        If one is no free variable of the model.
    ModelError
        If there is none.
    """
    if vars is None:
        return continuous_variables(model, sampler)
    listed = list(vars) if isinstance(vars, list | tuple) else [vars]
    names = {rv.name: rv for rv in model.free_RVs}
    known = [*model.free_RVs, *model.value_vars]
    resolved = []
    for var in listed:
        rv = names.get(var) if isinstance(var, str) else var
        if rv is None or not any(rv is k for k in known):
            raise OptionError(
                f"{sampler}: {var} is not a free variable of the model, whose free variables are "
                f"{', '.join(names)}."
            )
        resolved.append(rv)
    values = get_value_vars_from_user_vars(resolved, model)
    # A variable may be named twice, once by its value variable.
    return [value for i, value in enumerate(values) if not any(value is v for v in values[:i])]


def _has_ideal_step(rv: Tensor) -> bool:
    competences = (c for method in STEP_METHODS for c in method._competence(rv, True))
    return any(c == Competence.IDEAL for c in competences)
