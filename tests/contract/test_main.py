"""The main job, as a newcomer runs it."""

import os
import re
import sys
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_deer import DeerMALA
from pymc_deer.__main__ import _verdict, main
from pymc_deer.check import compare_with_sequential
from tests.support import sample


def test_main_job_prints_its_findings_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "idata.nc"
    options = ["--model", "eight-schools", "--backend", "jax", "--draws", "200", "--chains", "2"]
    idata = main([*options, "--output", str(output)])
    printed = capsys.readouterr().out
    for line in (
        *("Acceptance 0.", "sweeps per 1000", "Largest difference from sequential MALA"),
        "Of sequential MALA from a start 1e-06 away",
    ):
        assert line in printed
    # This chain forgets where it started.
    (ours,) = re.findall(r"same tape: (\S+) \(whitened", printed)
    (its_own,) = re.findall(r"1e-06 away: (\S+)\.\n", printed)
    assert 0 < float(ours) < 1e-4
    assert 0 < float(its_own) < 1e-4
    assert "onverged: largest R-hat" in printed
    with xr.open_datatree(output, engine="h5netcdf") as written:
        xr.testing.assert_equal(written["posterior"]["mu"], idata["posterior"]["mu"])


def test_the_check_has_its_momenta_from_where_the_chain_has_them() -> None:
    """On a GPU that is the device."""
    with pm.Model():
        pm.Normal("x", 1.3, 2.1, shape=3)
        step = DeerMALA(backend="jax", window=1, noise="device")
        assert isinstance(step, DeerMALA)
        sample(step, draws=20, tune=100)
    assert 0 < compare_with_sequential(step).max_difference < 1e-4


def test_main_job_refuses_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "ten-schools"])
    assert "eight-schools" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--draws", "0"], "0 is no integer of at least 4"),
        (["--draws", "-5"], "-5 is no integer of at least 4"),
        (["--draws", "many"], "many is no integer of at least 4"),
        (["--chains", "1"], "1 is no integer of at least 2"),
        (["--output", "nowhere/idata.nc"], "there is no directory nowhere"),
        (["--output", "."], ". is a directory"),
    ],
)
def test_main_job_refuses_what_it_could_not_finish(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in capsys.readouterr().err


def test_main_job_refuses_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.nc").touch()
    asked = []

    def access(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr("os.access", access)
    for name in ("new.nc", "there.nc"):
        with pytest.raises(SystemExit):
            main(["--output", str(tmp_path / name)])
        assert f"{tmp_path / name} cannot be written" in capsys.readouterr().err
    assert asked == [(tmp_path, os.W_OK), (tmp_path / "there.nc", os.W_OK)]


def test_main_job_says_which_package_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    assert "pip install scikit-learn" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_variable_that_never_moves_has_not_converged() -> None:
    draws = np.random.default_rng(0).normal(size=(4, 1000))
    moving, still = {"x": draws}, {"x": draws, "y": np.ones((4, 1000))}
    assert _verdict(az.from_dict({"posterior": moving})).startswith("Converged")
    assert _verdict(az.from_dict({"posterior": still})).startswith("NOT converged")


@pytest.mark.slow
def test_main_job_says_that_the_horseshoe_did_not_converge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--model", "horseshoe", "--backend", "jax", "--draws", "300", "--chains", "2"])
    assert "NOT converged" in capsys.readouterr().out
