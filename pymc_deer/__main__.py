"""The main job: ``python -m pymc_deer`` fits a model and checks the sampler on it."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from xarray import DataTree

from pymc_deer.check import compare_with_sequential
from pymc_deer.examples import EXAMPLES
from pymc_deer.mala import DeerMALA
from pymc_deer.status import DeerError

_SEED = 20260101


def main(arguments: Sequence[str] | None = None) -> DataTree:
    """Run the main job with command-line `arguments`; return the InferenceData."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _fitted(options)
    except DeerError as error:
        # Of a package that is missing, say, where a traceback would only hide what to do.
        parser.exit(1, f"{parser.prog}: {error}\n")


def _fitted(options: argparse.Namespace) -> DataTree:
    with EXAMPLES[options.model]() as model:
        print(f"Compiling {options.model} ...")
        step = DeerMALA(backend=options.backend)
        assert isinstance(step, DeerMALA)
        print(f"Sampling on {step.backend}.")
        idata = pm.sample(
            draws=options.draws,
            chains=options.chains,
            # In one process, so that the tuned step is at hand for the check below.
            cores=1,
            step=step,
            random_seed=_SEED,
        )
    if options.output:
        idata.to_netcdf(options.output, engine="h5netcdf")
        print(f"Written to {options.output}.")
    print(az.summary(idata).to_string())
    print(_statistics(idata))
    print(f"Checking {model.name or options.model} against sequential MALA ...")
    print(_check(step))
    print(_verdict(idata))
    return idata


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pymc_deer",
        description="Fit a model with pm.sample(step=DeerMALA()) and check the sampler on it.",
    )
    parser.add_argument("--backend", choices=("auto", "numba", "jax"), default="auto")
    parser.add_argument("--model", choices=tuple(EXAMPLES), default="breast-cancer")
    parser.add_argument(
        "--draws", type=_at_least(4), default=1000, help="recorded draws per chain, at least 4"
    )
    parser.add_argument(
        "--chains", type=_at_least(2), default=4, help="at least 2, which R-hat compares"
    )
    parser.add_argument(
        "--output", type=_new_file, metavar="FILE.nc", help="write the InferenceData there"
    )
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    """What reads an integer of at least so much from the command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no integer of at least {least}")
        return int(text)

    return read


def _new_file(text: str) -> Path:
    """A file that can be written when the draws are made."""
    file = Path(text)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {file.parent}")
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{file} is a directory")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{file} cannot be written")
    return file


def _statistics(idata: DataTree) -> str:
    stats = idata["sample_stats"].to_dataset()
    names = ("acceptance_rate", "step_size", "n_transitions")
    mean = {name: stats[name].mean().item() for name in names}
    return (
        f"Acceptance {mean['acceptance_rate']:.2f}, step size {mean['step_size']:.2f}, "
        f"{mean['n_transitions']:.1f} transitions per draw, "
        f"{stats['diverging'].sum().item()} draws with a divergent proposal."
    )


def _check(step: DeerMALA) -> str:
    comparison = compare_with_sequential(step)
    return (
        f"{comparison.n_transitions} transitions in windows of {comparison.window}: "
        f"{comparison.sweeps_per_1000:.0f} sweeps per 1000 transitions at acceptance "
        f"{comparison.acceptance_rate:.2f}; "
        f"{comparison.n_fallback} transitions fell back to sequential steps.\n"
        f"Largest difference from sequential MALA on the same tape: "
        f"{comparison.max_difference:.1e} (whitened units).\n"
        f"Of sequential MALA from a start {comparison.tol:.0e} away: "
        f"{comparison.own_difference:.1e}."
    )


def _verdict(idata: DataTree) -> str:
    diagnostics = az.summary(idata, kind="diagnostics", round_to="none")
    # NaN, of a variable that never moves, is no convergence.
    r_hat = np.max(np.asarray(diagnostics["r_hat"], float))
    ess = np.min(np.asarray(diagnostics["ess_bulk"], float))
    found = f"largest R-hat {r_hat:.3f}, smallest bulk ESS {ess:.0f}"
    if r_hat < 1.01 and ess >= 400:
        return f"Converged: {found}."
    return (
        f"NOT converged: {found}. These draws are no basis for conclusions. The posterior is too "
        "hard for MALA's short transitions, or the run too short: try more draws, a non-centred "
        "form of the model, or NUTS, pm.sample()."
    )


if __name__ == "__main__":
    main()
