"""Arguments that `pymc_deer.sample` refuses, and what to write instead."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymc.model import Model

from pymc_deer.status import OptionError, invalid_option

_OF_STEPS = "it moves all variables of the model together, from where initvals says"
_OF_NUTS = "it has no NUTS to initialise. Write initvals={...} for other starts, or leave it out"

INSTEAD = {
    **dict.fromkeys(("vars", "rng", "blocked", "initial_point"), _OF_STEPS),
    **dict.fromkeys(("init", "n_init", "jitter_max_retries"), _OF_NUTS),
    "step": (
        "it makes the step itself. Write kernel='mala' or kernel='hmc', and the step's options "
        "beside it; or pm.sample(step=...)"
    ),
    "nuts_sampler": "write kernel='mala' or kernel='hmc'; or pm.sample(nuts_sampler=...) for NUTS",
    "nuts_sampler_kwargs": "write the kernel's options one by one, such as target_accept=0.9",
    "nuts": "write the kernel's options one by one, such as target_accept=0.9",
    "compile_kwargs": "it compiles for itself. Write backend='numba' or backend='jax'",
    "trace": "draws are kept in memory, or written to a directory as they are made: store=PATH",
    "callback": (
        "nothing is called for each draw. Write store=PATH, and look at the draws so far with "
        "pymc_deer.store.open_store(PATH)"
    ),
    "mp_ctx": "its chains share one process. Write cores= for how many run at the same time",
    "blas_cores": (
        "chains that run at the same time have one thread of BLAS each. Write cores= for how many "
        "they are"
    ),
    "return_inferencedata": "InferenceData is what it returns. Leave it out",
    "keep_warning_stat": "warnings are logged, not kept. Leave it out",
}
"""Arguments of `pm.sample`, or of its steps, that are no arguments here: why, or what to write."""


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Refuse arguments that belong elsewhere, whatever their values.

    Raises
    ------
    OptionError
        Naming the first one, and what to write instead.
    """
    for name in options:
        if name in INSTEAD:
            raise OptionError(f"sample has no argument {name}: {INSTEAD[name]}.")


def refuse_unknown_names(var_names: Sequence[str] | None, model: Model) -> None:
    """Refuse to record variables that the model does not have.

    Raises
    ------
    OptionError
        Naming them, and those that it has.
    """
    known = [variable.name for variable in model.unobserved_RVs]
    if isinstance(var_names, str) or (var_names is not None and len(var_names) == 0):
        expected = f"a list of names, at least one of {', '.join(known)}"
        raise invalid_option("sample", "var_names", var_names, expected)
    unknown = [name for name in var_names or () if name not in known]
    if unknown:
        raise OptionError(
            f"sample(var_names=...): the model has no {', '.join(unknown)}; it has "
            f"{', '.join(known)}."
        )


def refuse_beside_store(idata_kwargs: Mapping[str, Any]) -> None:
    """Refuse what is computed of finished draws, which a store does not hold in memory.

    Raises
    ------
    OptionError
        Naming it.
    """
    unknown = sorted({"log_likelihood", "log_prior", "save_warmup"} & idata_kwargs.keys())
    if unknown:
        raise OptionError(
            f"sample(store=..., idata_kwargs=...): {', '.join(unknown)} cannot be stored as draws "
            "are made. Call pm.compute_log_likelihood on what sample returns."
        )


def refuse_beside_resume(**given: Any) -> None:
    """Refuse arguments that a run has had since it began, whatever their values.

    Raises
    ------
    OptionError
        Naming the first one.
    """
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                f"sample(resume=..., {name}=...): a run that goes on has its own. Leave {name} out."
            )
