"""Keys of what Numba has on disk: none is that of other code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pymc_deer.ops import groups_numba, matmul_numba, numba_source, scan_numba, shuffle_numba
from pymc_deer.ops.groups import GroupSums, GroupValues
from pymc_deer.ops.matmul import MatrixProduct
from pymc_deer.ops.scan import ChainScan, RunningSum
from pymc_deer.ops.shuffle import Shuffle

MODULES = (groups_numba, matmul_numba, numba_source, scan_numba, shuffle_numba)

VECTOR, MATRIX, INDEX = pt.dvector(), pt.dmatrix(), pt.lvector()
NODES = {
    "ChainScan": ChainScan()(*3 * [MATRIX], *4 * [VECTOR]),
    "RunningSum": RunningSum()(MATRIX),
    "MatrixProduct": MatrixProduct(False, True)(MATRIX, MATRIX),
    "GroupValues": GroupValues()(VECTOR, INDEX),
    "GroupSums": GroupSums((3,))(VECTOR, INDEX),
    "Shuffle": Shuffle(input_ndim=2, new_order=(1, 0))(MATRIX),
}


def key(node: Any) -> str:
    _, found = numba_funcify_and_cache_key(node.op, node=node)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NODES)
def test_other_code_has_another_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NODES[name].owner
    before = key(node)
    assert key(node) == before
    for module in MODULES:
        if hasattr(module, "CODE_VERSION"):
            monkeypatch.setattr(module, "CODE_VERSION", 1)
    assert key(node) != before


def test_the_version_is_that_of_all_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_source, "files", lambda _: tmp_path)
    versions = []
    for name, text in (("a.py", "x = 1"), ("b.py", "y = 1"), ("b.py", "y = 2"), ("c.txt", "z")):
        (tmp_path / name).write_text(text)
        versions.append(numba_source._version_of_code())
    assert len({*versions}) == 3
    assert versions[2] == versions[3]


def test_the_version_is_one_for_a_run() -> None:
    assert numba_source._version_of_code() == numba_source.CODE_VERSION
    assert np.iinfo(np.uint64).max >= numba_source.CODE_VERSION
