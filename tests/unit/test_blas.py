"""BLAS has one thread where matrices are small, whichever libraries are loaded."""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest

from pymc_deer.backends.blas import Blas


@pytest.mark.parametrize(
    ("n_threads", "limits"),
    [((1, 4), [1]), ((4, 1), [1]), ((1, 1), [])],
    ids=["of the second", "of the first", "of none"],
)
def test_all_libraries_are_limited_where_one_has_more_threads(
    n_threads: tuple[int, ...], limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy and SciPy each come with one of their own."""
    asked: list[int] = []

    def limit(limits: int) -> AbstractContextManager[None]:
        asked.append(limits)
        return nullcontext()

    libraries = [SimpleNamespace(num_threads=n) for n in n_threads]
    loaded = SimpleNamespace(lib_controllers=libraries, limit=limit)
    monkeypatch.setattr(Blas, "_loaded", loaded)
    with Blas().one_thread():
        assert asked == limits
