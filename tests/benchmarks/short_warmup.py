"""What a short warm-up is worth: ``uv run python -m tests.benchmarks.short_warmup``.

``pymc_deer.sample`` and nutpie, four chains of 500 draws behind warm-ups of 50 to 1000: gradients
of a chain's warm-up, gradients for an effective draw of the worst variable behind it, and those of
a chain until all have made 400 effective draws, warm-up included. Geometric means of several runs.
The rows go to ``docs/benchmarks/short_warmup.json``.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pymc as pm

from pymc_deer.examples import correlated_logistic
from tests.benchmarks.cases import CASES
from tests.benchmarks.divergences import N_CHAINS, ours
from tests.benchmarks.figures import MIN_ESS, quality, scalars
from tests.benchmarks.measure import take_no_options, write
from tests.benchmarks.samplers import sampled_by_nutpie
from tests.benchmarks.tables import geometric_mean
from tests.zoo import rotated_gaussian, student_t_regression

_CASES = ("eight_schools", "german_credit", "breast_cancer", "radon", "stochastic_volatility")
MODELS: dict[str, Callable[[], pm.Model]] = {
    **{name: CASES[name].build for name in _CASES},
    "logistic_50d": partial(correlated_logistic, 2000, 50),
    "student_t_regression": student_t_regression,
    "rotated_gaussian": rotated_gaussian,
}
TUNES = (50, 100, 300, 1000)
RUNS, DRAWS = 3, 500


def deer_hmc(model: pm.Model) -> Callable[[int, int], Any]:
    """Runs by length of warm-up and seed."""

    def run(tune: int, seed: int) -> Any:
        lengths = {"draws": DRAWS, "tune": tune, "discard_tuned_samples": False}
        return ours(backend="auto", **lengths)(model, seed)

    return run


def nutpie(model: pm.Model) -> Callable[[int, int], Any]:
    """The same of nutpie, compiled once."""
    from nutpie import compile_pymc_model

    compiled = compile_pymc_model(model)

    def run(tune: int, seed: int) -> Any:
        lengths = {"draws": DRAWS, "tune": tune, "chains": N_CHAINS}
        return sampled_by_nutpie(compiled, **lengths, seed=seed)[0]

    return run


SAMPLERS = (deer_hmc, nutpie)
PARTS = ("warm-up", "per ESS", f"to {MIN_ESS}")


def gradients(idata: Any, names: list[str]) -> tuple[float, float, float]:
    """Of a chain's warm-up, for an effective draw, and of a chain to as many draws as suffice."""
    warmup = float(idata["warmup_sample_stats"]["n_steps"].sum()) / N_CHAINS
    _, ess = quality(scalars({name: idata["posterior"][name].to_numpy() for name in names}))
    for_draw = float(idata["sample_stats"]["n_steps"].sum()) / ess
    return warmup, for_draw, warmup + for_draw * MIN_ESS / N_CHAINS


def rows() -> Iterator[dict[str, object]]:
    """A row for each model and length of warm-up."""
    for name, build in MODELS.items():
        model = build()
        names = [rv.name for rv in model.free_RVs]
        samplers = {sampler.__name__: sampler(model) for sampler in SAMPLERS}
        for tune in TUNES:
            row: dict[str, object] = {"model": name, "tune": tune}
            for sampler, run in samplers.items():
                runs = [gradients(run(tune, seed), names) for seed in range(RUNS)]
                for part, values in zip(PARTS, zip(*runs, strict=True), strict=True):
                    row[f"{sampler}, {part}"] = float(f"{geometric_mean(values):.3g}")
            yield row


def main() -> None:
    """Measure all."""
    take_no_options(__doc__)
    write("short_warmup", rows())


if __name__ == "__main__":
    main()
