"""The benchmarks' pieces: figures of runs known by hand, processes that fail, the report.

Nothing here looks at how long anything took.
"""

import argparse
import importlib
import json
import multiprocessing
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_deer.density import build_density
from pymc_deer.jacobian import Rule
from pymc_deer.noise import Tape, draw_tape
from tests.benchmarks import (
    device_exactness,
    gpu_kernels,
    hlo,
    paper,
    race,
    row_blocks,
    samplers,
    scaling,
    suites,
    sweeps,
    tables,
    window_kernels,
)
from tests.benchmarks.__main__ import _asked
from tests.benchmarks.cases import CASES
from tests.benchmarks.figures import Run, figures, scalars, seconds_to_converge
from tests.benchmarks.jax_samplers import OneLoop
from tests.benchmarks.measure import RESULTS, surroundings
from tests.benchmarks.rates import Rates, gradient_work, measure_rates
from tests.benchmarks.report import MARKS, headline, write_headline, write_report
from tests.benchmarks.worker import Task, Worker
from tests.support import SEED, interpret_kernels, quick_xla


def run_of(draws: np.ndarray) -> Run:
    """Made-up times: 3 s before sampling, which takes 10 s; one gradient a draw."""
    return Run(1.0, 2.0, 10.0, 13.0, {"x": draws}, draws[..., 0].size, 0)


def independent(n_chains: int, n_draws: int, size: int = 2) -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=(n_chains, n_draws, size))


@pytest.fixture
def compiled_quickly() -> Iterator[None]:
    with quick_xla():
        yield


@pytest.mark.usefixtures("compiled_quickly")
def test_our_samplers_report_what_belongs_together():
    sampler = samplers.ours("hmc", backend="jax", window=1)
    model = CASES["eight_schools"].build()
    found = sampler(samplers.Job(model, 60, 40, 2, 2, SEED))
    assert {name: draws.shape for name, draws in found.posterior.items()} == {
        "mu": (2, 60),
        "tau": (2, 60),
        "eta": (2, 60, 8),
    }
    row = figures(found, cores=2)
    ess = row["min_ess_bulk"]
    assert 0 < ess < 1000
    assert found.compiling + found.warmup + found.sampling <= found.total
    assert row["ess_per_s"] * found.sampling == pytest.approx(ess)
    assert row["ess_per_s_all"] * found.total == pytest.approx(ess)
    assert row["gradients_per_ess"] * ess == pytest.approx(found.gradients)
    assert row["us_per_gradient"] * found.gradients == pytest.approx(1e6 * found.sampling * 2)
    assert found.gradients >= 2 * 60 * row["leapfrog_steps"]
    assert (row["window"], row["sweeps"], row["backend"]) == (1, 0, "jax")


COMMANDS = re.findall(
    r"^\| `uv run python -m (tests\.benchmarks\.\w+)[^`]*`",
    (Path(samplers.__file__).parent / "README.md").read_text(),
    flags=re.MULTILINE,
)


def test_the_commands_of_the_table_are_found():
    assert {f"tests.benchmarks.{name}" for name in ("sweeps", "cores", "paper")} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_asked_for_help_measures_nothing(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command).main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_sweeps_are_counted_of_all_kernels_unless_some_are_named():
    assert sweeps.kernels_asked_for([]) == ["mala", "hmc"]
    assert sweeps.kernels_asked_for(["hmc"]) == ["hmc"]
    with pytest.raises(SystemExit):
        sweeps.kernels_asked_for(["nuts"])


def langevin(tape: Tape, start: np.ndarray, step_size: float, scales: np.ndarray) -> np.ndarray:
    """MALA as in the paper, on a Gaussian: a drift and noise of twice its variance."""
    states, x = [], start

    def logp(x: np.ndarray) -> float:
        return -0.5 * ((x / scales) ** 2).sum()

    def log_proposal(to: np.ndarray, x: np.ndarray) -> float:
        return -((to - x + step_size * x / scales**2) ** 2).sum() / (4.0 * step_size)

    for xi, log_u in zip(tape.xi, tape.log_u, strict=True):
        proposed = x - step_size * x / scales**2 + np.sqrt(2.0 * step_size) * xi
        there, back = (
            logp(proposed) - logp(x),
            log_proposal(x, proposed) - log_proposal(proposed, x),
        )
        x = proposed if there + back > log_u else x
        states.append(x)
    return np.array(states)


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize(
    ("factor", "rule"), [*((1.0, rule) for rule in paper.RULES), (1.1, "secant")]
)
def test_the_papers_chain_is_ours_on_its_noise_and_no_other(factor: float, rule: Rule):
    rng = np.random.default_rng(SEED)
    scales, start = np.geomspace(0.05, 0.2, 4), rng.normal(size=4)
    with pm.Model() as model:
        pm.Normal("x", 0.0, scales)
    basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    tape = draw_tape(rng, rng, 60, 4)
    states = langevin(tape, start, factor * paper.STEP_SIZE, scales)
    curvature = float((scales**-2).mean())
    them = paper.Theirs(lambda: states, lambda: (states, 7), start, basis, curvature, tape)
    row = paper.compared(them, build_density(model), rule, 1e-6, 1)
    assert row["sweeps_theirs"] == 7
    assert row["difference_theirs"] == 0.0
    assert (row["difference"] < 1e-5) == (factor == 1.0)
    assert 0.3 < row["acceptance"] < 1.0


def test_convergence_is_counted_from_the_draws_that_suffice():
    run = run_of(independent(4, 1000))
    found = seconds_to_converge(run, scalars(run.posterior))
    # About 400 independent draws are the first tenth or two of 4 x 1000.
    assert 3.0 < found < 3.0 + 0.35 * 10.0


def test_draws_that_are_short_of_the_target_are_made_up_for_in_time():
    run = run_of(independent(4, 60))
    found = seconds_to_converge(run, scalars(run.posterior))
    ess = figures(run, 1)["min_ess_bulk"]
    assert ess < 400
    assert found == pytest.approx(3.0 + 10.0 * 400 / ess)


def test_chains_that_disagree_never_converge():
    run = run_of(independent(4, 1000) + np.arange(4)[:, None, None])
    assert seconds_to_converge(run, scalars(run.posterior)) == np.inf
    assert race.summary([{"status": "ok", **figures(run, 1)}])["seconds_to_converge"] is None


def test_a_single_chain_is_compared_with_itself():
    drifting = independent(1, 1000) + np.linspace(0.0, 3.0, 1000)[None, :, None]
    assert figures(run_of(independent(1, 1000)), 1)["max_r_hat"] < 1.01
    assert figures(run_of(drifting), 1)["max_r_hat"] > 1.1


def test_of_large_variables_some_scalars_are_looked_at():
    draws = scalars({"x": independent(2, 10, 1000), "y": independent(2, 10, 3)})
    assert draws["x"].shape == (2, 10, 100)
    assert draws["y"].shape == (2, 10, 3)


def test_a_process_answers_and_says_why_it_does_not():
    task = Task("tests.unit.echo", {"greeting": "hello"}, {"ECHO_VARIABLE": "set"}, cores=1)
    with Worker(task) as worker:
        assert worker.wait()["status"] == "ready"
        answer = worker.ask("you", 60)
        assert (answer["status"], answer["said"]) == ("ok", "hello you")
        assert answer["variable"] == "set"
        # Python's own, as in a user's script: the first.
        assert answer["start_method"] == multiprocessing.get_all_start_methods()[0]
        assert answer["peak_mib"] > 0
        assert worker.ask("fail", 60)["status"] == "failed: ValueError: asked to"
        assert worker.ask("sleep", 0.2)["status"] == "timed out (0 s)"
        assert not worker.is_alive
        assert "crashed" in worker.ask("you", 60)["status"]
    with Worker(task) as worker:
        worker.wait()
        assert worker.ask("exit", 60)["status"] == "crashed (exit code 3)"


def test_a_process_without_its_package_says_so():
    with Worker(Task("tests.unit.no_such_module")) as worker:
        assert worker.wait()["status"] == "not installed: tests.unit.no_such_module"


def test_a_race_gives_a_row_to_each_sampler_whenever_it_has_run():
    setting = race.Setting(cores=1, precision="float64", on_gpu=False)
    sizes = {"draws": 30, "tune": 30, "chains": 2}
    with race.started("eight_schools", ["deer_sequential_jax"], sizes, setting) as workers:
        first, row = race.race("eight_schools", workers, sizes, 2, 300.0, setting)
    assert first["repeats"] == 1
    assert first["each"]["ess_per_s"] == row["each"]["ess_per_s"][:1]
    assert (row["model"], row["sampler"]) == ("eight_schools", "deer_sequential_jax")
    assert row["repeats"] == 2
    assert (row["dimension"], row["draws"], row["status"]) == (10, 30, "ok")
    assert len(row["each"]["ess_per_s"]) == 2
    assert row["ess_per_s"] == pytest.approx(np.median(row["each"]["ess_per_s"]), rel=1e-3)
    json.dumps(row)


def race_row(sampler: str, ess_per_s: list[float], **changes: Any) -> dict[str, Any]:
    """A stored row, all of whose figures but one are 1."""
    each = dict.fromkeys(race.PAIRED, [1.0] * len(ess_per_s)) | {"ess_per_s": ess_per_s}
    numbers = dict.fromkeys([*race.PAIRED, "gradients_per_ess", "warmup_s", "sampling_s"], 1.0)
    return {
        **{"model": "eight_schools", "sampler": sampler, "run": "then", "status": "ok"},
        **{"precision": "float64", "draws": 10, "tune": None, "chains": 4, "repeats": 3},
        **{"dimension": 10, "peak_mib": 500, "max_r_hat": 1.004, "race_s": 60},
        **{**numbers, "ess_per_s": float(np.median(ess_per_s)), "each": each},
        **changes,
    }


def test_ratios_are_those_of_neighbours_in_time():
    rows = [race_row("deer_mala", [2.0, 30.0, 8.0]), race_row("pymc", [1.0, 10.0, 1.0])]
    model = ("eight_schools", 4)
    assert tables.paired(rows, model, "deer_mala", "pymc", "ess_per_s") == pytest.approx(3.0)
    for row in rows:
        del row["each"]["ess_per_s"][1]
    # Of 2 and 8, whichever of the two is above.
    assert tables.paired(rows, model, "deer_mala", "pymc", "ess_per_s") == pytest.approx(4.0)
    assert tables.paired(rows, model, "pymc", "deer_mala", "ess_per_s") == pytest.approx(0.25)
    rows[1]["run"] = "another day"
    assert tables.paired(rows, model, "deer_mala", "pymc", "ess_per_s") is None
    assert tables.paired(rows, model, "deer_mala", "nutpie", "ess_per_s") is None
    assert tables.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


COLD = {"compiling": 9.0, "sampling": 20.0, "total": 30.0}
WARM = {"compiling": 1.0, "sampling": 10.0, "total": 12.0}


def test_what_counts_compilation_is_of_the_first_run():
    run = run_of(independent(4, 1000))
    cold, warm = ({"status": "ok", **figures(replace(run, **of), 1)} for of in (COLD, WARM))
    found = race.summary([cold, warm, warm])
    for name in race.FIRST:
        assert found[name] == pytest.approx(cold[name], rel=1e-3)
    assert found["ess_per_s"] == pytest.approx(warm["ess_per_s"], rel=1e-3)
    rows = [race_row("deer_hmc", [1.0] * 3), race_row("nutpie", [1.0] * 3)]
    rows[0]["each"]["seconds_to_converge"] = [2.0, 1.0, 1.0]
    rows[1]["each"]["seconds_to_converge"] = [10.0, 1.0, 1.0]
    assert tables.paired(
        rows, ("eight_schools", 4), "nutpie", "deer_hmc", "seconds_to_converge"
    ) == pytest.approx(5.0)


@pytest.mark.usefixtures("compiled_quickly")
def test_one_program_warms_up_and_draws():
    """Of two chains, whose draws are those behind warm-up, in order."""
    loop = OneLoop(lambda key, x: x + key, lambda state: (state + 1, {"x": state}), tune=5, draws=3)
    keys, starts = [np.array([10.0, 20.0])] * 2, np.array([0.0, 100.0])
    warm_up, draw = loop.compiled(keys, starts)
    found = draw(keys[1], warm_up(keys[0], starts))
    np.testing.assert_array_equal(found["x"], [[15, 16, 17], [125, 126, 127]])


def test_the_report_shows_all_that_was_measured(tmp_path):
    timed_out = race_row("numpyro", [1.0], status="timed out (60 s)")
    timed_out = {k: v for k, v in timed_out.items() if k not in (*race.PAIRED, "each")}
    rows = {
        "models": [
            race_row("deer_mala", [200.0, 300.0, 250.0], us_per_gradient=1.234),
            race_row("nutpie", [100.0, 100.0, 1000.0]),
            race_row("deer_mala", [8.0], chains=2),
            race_row("nutpie", [1.0], chains=2),
            race_row("nutpie", [1.0], model="alone"),
            timed_out,
        ],
        "scaling": [
            {
                **{"axis": "window", "backend": "jax", "n": 1000, "dimension": 25, "chains": 1},
                **{"window": w, "transitions_per_s": 1e4 * w, "speed_up": float(w)},
                **{"sweeps_per_1000": 20.0 * (w > 1), "us_per_state": 1 / w, "device": "cpu"},
                **{"bound_transitions_per_s": 1e5 * w, "share_of_bound": 0.1},
                **{"matrix_gflops": 50.0, "bandwidth_gb_s": 10.0},
            }
            for w in (1, 16, 64)
        ],
        "cold": [{"model": "radon", "sampler": "nutpie", "seconds": 12.5}],
    }
    for part, stored in rows.items():
        report = {**surroundings(), "rows": stored}
        (tmp_path / f"cpu_{part}.json").write_text(json.dumps(report))
    lines = write_report(tmp_path, "cpu").read_text().splitlines()
    assert "| deer_mala | 250 | 1 | 1 | 1 | 1.23 | 1 | 1 | 1 | 500 | 1.004 |  |" in lines
    assert any(line.startswith("| numpyro | timed out (60 s) | ") for line in lines)
    assert "| eight_schools | 2 | 1 |" in lines
    assert "| eight_schools, 2 chains | 8 | 1 |" in lines
    # Of runs with the usual chains.
    assert "| geometric mean, 4 chains | 2 | 1 |" in lines
    # Without a rival there is no ratio.
    assert not any(line.startswith("| alone |") for line in lines)
    scaled = "| window | jax | 16 | 1000 | 25 | 1 | 160,000 | 16 | 20 | 0.0625 | 1,600,000 | 0.1 |"
    assert scaled in lines
    assert "| radon | nutpie | 12.5 |  |  |  |" in lines
    for name in ("ess", "speed_up", "sweeps", "cost"):
        assert (tmp_path / f"cpu_{name}.png").read_bytes().startswith(b"\x89PNG")
        assert any(f"(cpu_{name}.png)" in line for line in lines)


@pytest.mark.usefixtures("compiled_quickly")
def test_scaling_compares_windows_with_the_sequential_chain_and_the_bound():
    point = scaling.Point("window", n=30, dimension=3, chains=2, windows=(8,))
    effort = scaling.Effort(seconds=1e-3, repeats=3, matrix=8, copied=8, patience=0.0)
    rates = Rates(1e9, lambda resident: 1e9)
    single, windowed = scaling.measure(point, effort, rates)
    assert (single["window"], single["speed_up"], single["sweeps_per_1000"]) == (1, 1.0, 0.0)
    assert windowed["window"] == 8
    # Every sweep commits at least one of the window's eight.
    assert 1000 / 8 <= windowed["sweeps_per_1000"] <= 1000
    ratio = windowed["transitions_per_s"] / single["transitions_per_s"]
    assert windowed["speed_up"] == pytest.approx(ratio, rel=1e-2)
    seconds = 2 / windowed["transitions_per_s"]
    states = windowed["sweeps_per_1000"] / 1000 * 8 * 2 * 2
    assert windowed["us_per_state"] == pytest.approx(1e6 * seconds / states, rel=1e-2)
    bound = rates.seconds(*gradient_work(30, 3, 1 * 2, 8))
    assert single["bound_transitions_per_s"] == pytest.approx(2 / bound, rel=1e-2)


@pytest.mark.usefixtures("compiled_quickly")
def test_steps_and_sweeps_are_timed_on_whatever_device_there_is(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "_STEPS", 4)
    monkeypatch.setattr(gpu_kernels, "_SWEEPS", 2)
    run, count = gpu_kernels.prepared(gpu_kernels.Loop("german_credit", "mala", 1, 8))
    assert count == 2
    [solved] = run()
    assert (len(solved), solved.n_sweeps, solved.n_fallback) == (16, 2, 0)
    loop = gpu_kernels.Loop("german_credit", "hmc", 2, 1, 3)
    [row] = gpu_kernels.rows([loop])
    assert vars(loop).items() <= row.items()
    assert min(row["us"], row["us_default"]) > 0
    # No kernels of a GPU.
    assert (row["kernels"], row["busy_us"], row["longest"]) == (0, 0.0, "")


def test_a_gpus_results_are_not_written_over_without_one(monkeypatch):
    kept = RESULTS / "gpu_models.json"
    before = kept.read_bytes()
    monkeypatch.setattr("sys.argv", ["tests.benchmarks", "--suite", "gpu"])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="no GPU here"):
        importlib.import_module("tests.benchmarks.__main__").main()
    assert kept.read_bytes() == before
    devices = {row.get("device") for row in json.loads(before)["rows"]}
    assert "cpu" not in devices


@pytest.mark.usefixtures("compiled_quickly")
def test_sweeps_with_kernels_are_timed_beside_those_without(monkeypatch):
    """On a CPU, where XLA has to do for both."""
    made = row_blocks.compiled
    monkeypatch.setattr(row_blocks, "compiled", lambda *given: made(*given[:2], False))
    monkeypatch.setattr(row_blocks, "_REPEATS", 2)
    [row] = row_blocks.rows([row_blocks.Windows(30, 3, "mala", 1, 16)])
    assert (row["n"], row["chains"], row["window"]) == (30, 1, 16)
    assert row["sweeps"] == row["sweeps_without"] > 1
    for suffix in ("", "_without"):
        waited = row[f"us{suffix}"] * row[f"sweeps{suffix}"] / 1000
        assert 0 < waited < row[f"ms{suffix}"]


@pytest.mark.usefixtures("compiled_quickly")
def test_kernels_along_the_window_are_compared_with_formulas(monkeypatch):
    """Interpreted, where there is no GPU; what is wrong in one place is seen."""
    interpret_kernels(monkeypatch)
    monkeypatch.setattr(window_kernels, "_REPEATS", 1)
    monkeypatch.setattr(window_kernels, "_IN_A_ROW", 2)
    scan = window_kernels.Scan(2, 16, 3, 1, "float32")
    [row] = window_kernels.rows([scan])
    assert max(row["difference"], row["difference_of_errors"]) < 1e-5
    assert min(row["us"], row["us_without"]) > 0

    def right(*values):
        return values[3], values[5]

    def wrong(*values):
        return values[3].at[10, 1].add(0.1), values[5]

    monkeypatch.setattr(window_kernels, "formulas", lambda scan: right)
    monkeypatch.setattr(window_kernels, "next_guess_and_error", wrong)
    [row] = window_kernels.rows([scan])
    assert row["difference"] > 1e-2


@pytest.mark.usefixtures("compiled_quickly")
def test_a_device_is_compared_with_numba_on_one_tape(monkeypatch):
    monkeypatch.setattr(device_exactness, "N", 64)
    monkeypatch.setattr(device_exactness, "WINDOW", 16)
    monkeypatch.setattr(device_exactness, "KERNELS", ("mala",))
    found = list(device_exactness.rows(["float64"]))
    assert [(row["window"], row["chains"]) for row in found] == [(1, 1), (1, 4), (16, 1), (16, 4)]
    assert all(row["difference"] < 1e-12 for row in found[:2])
    assert all(0 < row["difference"] < 10 * row["tol"] for row in found[2:])
    assert all(row["sweeps"] > 0 and row["fallback"] == 0 for row in found[2:])


def test_runs_of_different_sizes_say_whose_they_are():
    rows = [race_row("deer_hmc", [2.0], draws=4000), race_row("numpyro", [1.0], tune=500)]
    rows += [race_row("blackjax_chees", [9.0], tune=500, own_chains=256.0, own_draws=100.0)]
    sizes = tables.race_tables(rows)
    assert "deer_hmc: 4 chains of 4000 draws, warm-up each sampler's own; " in sizes
    assert "numpyro: 4 chains of 10 draws, warm-up 500; " in sizes
    assert "blackjax_chees: 256 chains of 100 draws, warm-up 500; float64" in sizes
    assert "D = 10; 1 chain of 10 draws, warm-up" in tables.race_tables(
        [race_row("numpyro", [1.0], chains=1)]
    )


def test_what_a_gpu_can_compile_ahead_runs_with_any_seed(monkeypatch):
    asked = []

    def compiled(self, job):
        asked.append(job.seed)
        return lambda seed: run_of(independent(2, 10 + seed))

    monkeypatch.setattr(samplers.InJax, "compiled", compiled)
    job = samplers.Job(pm.Model(), 10, 10, 2, 1, seed=1)
    ahead = race.of_seed(samplers.InJax("numpyro_nuts"), job, on_gpu=True)
    assert asked == [1]
    assert [ahead(seed).posterior["x"].shape[1] for seed in (3, 4)] == [13, 14]
    later = race.of_seed(samplers.InJax("numpyro_nuts"), job, on_gpu=False)
    assert asked == [1]
    assert later(5).posterior["x"].shape[1] == 15
    assert asked == [1, 5]


def test_the_bound_is_what_takes_longer():
    # 4 N D operations a state; the data twice and 4 N numbers a state of 8 bytes.
    work = gradient_work(100, 10, 5, 8)
    assert work == (20_000, 8 * (2000 + 2000), 8 * (1000 + 1000))
    # At the bandwidth of as many bytes as take turns.
    assert Rates(1e3, lambda resident: resident / 16).seconds(*work) == 32.0
    assert Rates(100.0, lambda resident: resident / 16).seconds(*work) == 200.0


def test_rates_are_measured_by_size():
    rates = measure_rates("float64", 64, 2**14)
    assert rates.flops > 0
    small, large = rates.bandwidth(100.0), rates.bandwidth(2.0**30)
    assert small > 0
    assert large > 0
    # Of one size they are measured once: nothing is as fast again to the last bit.
    assert rates.bandwidth(100.0) == small
    assert rates.bandwidth(2.0**40) == large


@pytest.mark.parametrize("name", suites.SUITES)
@pytest.mark.parametrize("quick", [True, False])
def test_suites_name_what_there_is(name, quick):
    suite = suites.SUITES[name](2, None, quick=quick)
    for each in suite.races:
        assert each.model in CASES
        assert set(each.samplers) <= samplers.SAMPLERS.keys()
    assert set(suite.cold_models) <= CASES.keys()
    assert suite.races
    assert suite.points


@pytest.mark.parametrize("name", ["german_credit", "horseshoe", "hierarchical_100"])
def test_models_follow_the_precision_asked_for(name):
    with pytensor.config.change_flags(floatX="float32"):
        observed = CASES[name].build().observed_RVs[0]
    [p] = observed.owner.op.dist_params(observed.owner)
    assert p.dtype == "float32"


def test_the_readme_has_the_table_of_what_was_measured():
    readme = (RESULTS.parents[1] / "README.md").read_text()
    table = headline(RESULTS)
    assert f"{MARKS[0]}\n{table}{MARKS[1]}\n" in readme
    assert "geometric mean" in table


def test_a_new_table_takes_the_place_of_the_old_one(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{MARKS[0]}\n| old |\n{MARKS[1]}\nafter\n")
    for _ in range(2):
        write_headline(readme, RESULTS)
        assert readme.read_text() == f"before\n{MARKS[0]}\n{headline(RESULTS)}{MARKS[1]}\nafter\n"


PROGRAM = """HloModule jit_loop

%fused_add (p: f32[8,5]) -> f32[8,5] {
  %p = f32[8,5]{1,0} parameter(0)
  ROOT %s = f32[8,5]{1,0} add(%p, %p)
}

%path (c: (s64[], f32[8,5])) -> (s64[], f32[8,5]) {
  %c = (s64[], f32[8,5]{1,0}) parameter(0)
  %x = f32[8,5]{1,0} get-tuple-element(%c), index=1
  %copy.1 = f32[8,5]{1,0} copy(%x)
  ROOT %t = (s64[], f32[8,5]{1,0}) tuple(%x, %copy.1)
}

%sweep (c: (s64[], f32[8,5])) -> (s64[], f32[8,5]) {
  %c = (s64[], f32[8,5]{1,0}) parameter(0)
  %x = f32[8,5]{1,0} get-tuple-element(%c), index=1
  %gemm = (f64[8,9]{1,0}, s8[4194304]{0}) custom-call(%x, %x), custom_call_target="__cublas$gemm"
  %found = pred[8]{0} fusion(%gemm), kind=kLoop, calls=%fused_add
  %while.1 = (s64[], f32[8,5]{1,0}) while(%c), condition=%less, body=%path
  ROOT %t = (s64[], f32[8,5]{1,0}) tuple(%x, %x)
}

ENTRY %main.1 (a: f32[8,5]) -> f32[8,5] {
  %a = f32[8,5]{1,0} parameter(0)
  %loop = (s64[], f32[8,5]{1,0}) while(%a), condition=%less, body=%sweep
  ROOT %x = f32[8,5]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_kernels_and_bytes_of_loops_are_read_from_a_program():
    matrix, wide = 4 * 8 * 5, 8 * 8 * 9
    path = hlo.Work(1, 0, 2 * matrix, None)
    assert hlo.work_of_loop(PROGRAM) == hlo.Work(2, 1, 2 * matrix + wide + wide + 8, path)


def test_a_program_without_a_loop_has_no_work_of_one():
    with pytest.raises(ValueError, match="no loop"):
        hlo.work_of_loop(PROGRAM.replace(" while(", " copy("))


def test_samplers_run_where_they_take_part() -> None:
    """In the suite's order; those that take part nowhere run everywhere."""
    suite = suites.SUITES["gpu"](2, None, quick=False)

    def runs(*samplers: str) -> list[tuple[str, ...]]:
        given = argparse.Namespace(samplers=samplers or None, models=None, minutes=None)
        return [each.samplers for each in _asked(suite, given).races]

    assert runs() == [each.samplers for each in suite.races]
    for found, each in zip(runs("numpyro", "pymc", "deer_hmc"), suite.races, strict=True):
        known = tuple(s for s in each.samplers if s in ("deer_hmc", "numpyro"))
        assert found == (*known, "pymc")
