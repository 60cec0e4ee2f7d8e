"""Arguments that `pymc_deer.sample` refuses, and what to write instead."""

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pymc.model import Model
from pymc.progress_bar.progress import ProgressBarOptions
from pymc.util import is_transformed_name
from pytensor.graph.basic import Variable
from pytensor.tensor.basic import as_tensor_variable

from pymc_deer.density import is_sparse
from pymc_deer.options import HMCOptions, listed
from pymc_deer.start import wrong_shape
from pymc_deer.status import ModelError, OptionError, invalid_option
from pymc_deer.store import local_path

_OF_STEPS = "it moves all variables of the model together, from where initvals says"
_OF_NUTS = "it has no NUTS to initialise. Write initvals={...} for other starts, or leave it out"

INSTEAD = {
    **dict.fromkeys(("vars", "blocked", "initial_point"), _OF_STEPS),
    **dict.fromkeys(("rng", "seed"), "write random_seed=, an integer or a NumPy Generator"),
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

_INSTEAD_BESIDE_STORE = {
    "log_likelihood": "Call pm.compute_log_likelihood on what sample returns",
    "log_prior": "Call pm.compute_log_prior on what sample returns",
    "save_warmup": "Write discard_tuned_samples=False to keep warm-up",
    **dict.fromkeys(
        ("prior", "posterior_predictive", "predictions"), "Add the group to what sample returns"
    ),
}
"""Arguments of `pm.to_inference_data` that are no part of a run, and what to write instead."""

OWN = (
    *("draws", "kernel", "tune", "chains", "cores", "devices", "model", "random_seed", "initvals"),
    *("var_names", "progressbar", "progressbar_theme", "quiet", "discard_tuned_samples"),
    *("compute_convergence_checks", "idata_kwargs", "store", "resume"),
)
"""Arguments of `pymc_deer.sample` that are none of its step."""

_URL = re.compile(r"[a-z][\w+.:-]+:/", re.IGNORECASE)
"""How a URL begins, also one that has become a path; of more letters than a drive has."""

_DIMENSIONS = ("chain", "draw")
_STARTS = ("support_point", "prior")
_FILE_NAME = re.compile(r"(?!\.z)[^/\\]+")
_LONGEST_NAME = 240
"""Bytes of a name, of the 255 that file systems have, to which endings are added."""


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Refuse arguments that belong elsewhere, whatever their values, or that no kernel has.

    Raises
    ------
    OptionError
        Naming what to write instead, or the arguments that there are.
    """
    for name in options:
        if name in INSTEAD:
            raise OptionError(f"sample has no argument {name}: {INSTEAD[name]}.")
    known = [*OWN, *(f.name for f in fields(HMCOptions))]
    if unknown := sorted(options.keys() - set(known)):
        raise OptionError(
            f"sample has no argument {', '.join(unknown)}; it takes {', '.join(known)}."
        )


def refuse_no_progressbar(progressbar: Any) -> None:
    """Refuse what PyMC would when all is compiled and there is a store.

    Raises
    ------
    OptionError
        Telling what there is.
    """
    known = get_args(ProgressBarOptions)
    if not isinstance(progressbar, bool) and progressbar not in known:
        expected = f"True, False or one of {known}"
        raise invalid_option("sample", "progressbar", progressbar, expected)


def refuse_to_begin(model: Model, initvals: Any, chains: int, store: Any) -> None:
    """Refuse what no run can begin with, before anything is compiled.

    Parameters
    ----------
    initvals
        By name, as :func:`starts_by_name` has them.

    Raises
    ------
    OptionError
        Naming the argument, or the variables that the model does not have.
    StartError
        Naming the variable whose start has another shape.
    """
    if store is not None and not _is_local(store):
        raise invalid_option("sample", "store", store, "the path of a local directory, not a URL")
    alike = initvals is None or isinstance(initvals, dict)
    of_each = [initvals] * chains if alike else _listed(initvals)
    if len(of_each) != chains or not all(one is None or isinstance(one, dict) for one in of_each):
        expected = f"None, a dict of values by variable, or a list of {chains}: one for each chain"
        raise invalid_option("sample", "initvals", initvals, expected)
    sampled = {variable.name: variable for variable in (*model.free_RVs, *model.value_vars)}
    variables = {**model.named_vars, **sampled}
    # In a model with a prefix, variables may be called without it.
    variables |= {model.name_of(name): variable for name, variable in variables.items()}
    given = [pair for one in of_each for pair in (one or {}).items()]
    if unknown := [str(name) for name in dict(given) if name not in variables]:
        raise OptionError(
            f"sample(initvals=...): the model has no {', '.join(unknown)}; its free variables are "
            f"{', '.join(rv.name for rv in model.free_RVs)}."
        )
    for name, start in given:
        if variables[name].name in sampled:
            _refuse_start(name, start, variables[name].type.shape)


def starts_by_name(initvals: Any) -> Any:
    """The same, where variables that are given by themselves are given by their names.

    They may be those of the model that this one was made of, as by `pm.observe`. What are no starts
    stays as it is.
    """
    if isinstance(initvals, dict):
        return {getattr(variable, "name", variable): start for variable, start in initvals.items()}
    return [starts_by_name(one) for one in _listed(initvals)] or initvals


def _refuse_start(name: str, start: Any, shape: tuple[int | None, ...]) -> None:
    """Refuse what is no start, or has another shape than the variable, None being any length."""
    if start is None or isinstance(start, Variable):
        return
    if isinstance(start, str) and start in _STARTS:
        return
    try:
        # PyMC makes a tensor of it, which it can of fewer things than NumPy of an array.
        numbers = np.asarray(start)
        as_tensor_variable(start)
    except (NotImplementedError, TypeError, ValueError):
        numbers = np.array(None)
    if numbers.dtype.kind not in "biuf":
        expected = f"an array of numbers, or one of {_STARTS}"
        raise invalid_option("sample", f"initvals[{name!r}]", start, expected)
    of_start = numbers.shape
    alike = (there in (None, n) for n, there in zip(of_start, shape, strict=False))
    if len(of_start) != len(shape) or not all(alike):
        raise wrong_shape(name, of_start, shape)


def checked_kwargs(idata_kwargs: Any) -> dict[str, Any]:
    """`idata_kwargs`, which are none by default.

    Raises
    ------
    OptionError
        If they are no arguments by name, or number draws.
    """
    if idata_kwargs is not None and not isinstance(idata_kwargs, Mapping):
        expected = "None or a dict of arguments of pm.to_inference_data"
        raise invalid_option("sample", "idata_kwargs", idata_kwargs, expected)
    coords = (idata_kwargs or {}).get("coords")
    if isinstance(coords, Mapping) and "draw" in coords:
        raise OptionError(
            "sample(idata_kwargs['coords']=...): draws are numbered from 0. Leave 'draw' out, and "
            "number those of a group anew behind it: idata['posterior'].coords['draw'] = ..."
        )
    return dict(idata_kwargs or {})


def refuse_unknown_terms(
    idata_kwargs: Mapping[str, Any], var_names: Sequence[str] | None, model: Model
) -> None:
    """Refuse the log-likelihood or the log-prior of a variable that has none, or of few variables.

    Raises
    ------
    OptionError
        Naming the variables that have one, or those that they are computed of.
    """
    free = [rv.name for rv in model.free_RVs]
    recorded = free if var_names is None else _listed(var_names)
    left_out = [name for name in free if name not in recorded]
    terms = {"log_likelihood": [rv.name for rv in model.observed_RVs], "log_prior": free}
    for group, known in terms.items():
        asked = idata_kwargs.get(group, False)
        if asked is False:
            continue
        names = _listed(asked)
        if asked is not True and (not names or not set(names) <= set(known)):
            expected = f"True, False or a list of some of {', '.join(known)}"
            raise invalid_option("sample", f"idata_kwargs[{group!r}]", asked, expected)
        if left_out:
            raise OptionError(
                f"sample(idata_kwargs[{group!r}]=...): it is computed of all free variables, and "
                f"var_names leaves out {', '.join(left_out)}. Add them, or leave var_names out."
            )


def refuse_unknown_names(var_names: Sequence[str] | None, model: Model) -> None:
    """Refuse to record variables that the model does not have.

    Raises
    ------
    OptionError
        Naming them, and those that it has.
    """
    known = [variable.name for variable in model.unobserved_RVs]
    if var_names is None:
        return
    names = _listed(var_names)
    if not names or not all(isinstance(name, str) for name in names):
        expected = f"a list of names, at least one of {', '.join(known)}"
        raise invalid_option("sample", "var_names", var_names, expected)
    if unknown := [name for name in names if name not in known]:
        raise OptionError(
            f"sample(var_names=...): the model has no unobserved variable {', '.join(unknown)}; it "
            f"has {', '.join(known)}. Transformed ones are kept with "
            "idata_kwargs={'include_transformed': True}, in place of var_names."
        )


def refuse_sparse_data(model: Model) -> None:
    """Refuse data that PyMC makes no InferenceData of, so that the draws would be lost.

    Raises
    ------
    ModelError
        Naming the first.
    """
    for variable in model.data_vars:
        if is_sparse(variable):
            raise ModelError(
                f"sample: {variable.name} is sparse data in pm.Data, of which PyMC makes no "
                "InferenceData. Write the matrix itself into the model, by "
                "pytensor.sparse.as_sparse_variable(MATRIX)."
            )


def refuse_names(model: Model, var_names: Sequence[str] | None, store: Any) -> None:
    """Refuse names that draws, or the files of a store, cannot be kept by.

    Raises
    ------
    ModelError
        Naming the first.
    """
    unobserved = [rv.name for rv in model.unobserved_RVs]
    recorded = unobserved if var_names is None else [*_listed(var_names)]
    observed, given = ([v.name for v in of] for of in (model.observed_RVs, model.data_vars))
    data = [*observed, *given]
    for name in (*recorded, *data):
        if name in _DIMENSIONS:
            raise ModelError(
                f"sample: draws have a dimension called {name}, so that no variable can be. Give "
                "it another name."
            )
    for name in recorded:
        if is_transformed_name(name):
            raise ModelError(
                f"sample: PyMC takes {name} for the values of a transformed variable, which are no "
                "draws. Give it a name that does not end with __."
            )
    for names in (recorded, observed, given):
        # Within a group, what is called as a dimension is taken for its coordinates.
        for name, dimension in _default_dimensions(names, model):
            if dimension in names:
                raise ModelError(
                    f"sample: {name} has a dimension called {dimension}, so that no variable can "
                    f"be. Give it another name, or write dims= for {name}."
                )
    if store is None:
        return
    for name in (*recorded, *data, *model.coords):
        is_file = _FILE_NAME.fullmatch(name) and name not in (".", "..")
        if not is_file or len(name.encode()) > _LONGEST_NAME:
            raise ModelError(
                f"sample(store=...): {name!r} is no name for a file, which each variable and "
                "dimension has there. Give it one without / and \\, of at most "
                f"{_LONGEST_NAME} bytes, that does not begin with .z."
            )


def _default_dimensions(names: Sequence[str], model: Model) -> Iterator[tuple[str, str]]:
    """Of variables with axes that have no name, each of them with the one that ArviZ gives it."""
    for name in names:
        dims = model.named_vars_to_dims.get(name) or ()
        named = sum(dim is not None for dim in dims)
        for i in range(model[name].ndim - named):
            yield name, f"{name}_dim_{i}"


def refuse_beside_store(idata_kwargs: Mapping[str, Any]) -> None:
    """Refuse what is computed of finished draws, which a store does not hold in memory.

    Raises
    ------
    OptionError
        Naming it.
    """
    for name, instead in _INSTEAD_BESIDE_STORE.items():
        if name in idata_kwargs:
            raise OptionError(
                f"sample(store=..., idata_kwargs=...): {name} is none of a store's. {instead}."
            )


def run_path(resume: Any) -> Path:
    """Where the run is that is to go on.

    Raises
    ------
    OptionError
        If that is no local path.
    """
    if not _is_local(resume):
        expected = "the path of a stored run, resume=PATH, in place of store=PATH"
        raise invalid_option("sample", "resume", resume, expected)
    return local_path(resume)


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


def _listed(values: Any) -> Sequence[Any]:
    """The values of what may be gone through more than once; none of anything else."""
    return listed(values) if isinstance(values, Sized) else ()


def _is_local(place: Any) -> bool:
    """Whether it is a path, and no URL."""
    path = fspath(place) if isinstance(place, str | PathLike) else None
    return isinstance(path, str) and not _URL.match(path)
