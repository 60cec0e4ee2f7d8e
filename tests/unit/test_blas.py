"""BLAS has one thread where matrices are small, whichever libraries are loaded."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Barrier, Thread
from typing import Any

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from pymc_deer.backends import blas
from pymc_deer.backends.blas import Blas, Pool


class Library:
    """One that has so many threads, and sees what it is told."""

    def __init__(self, name: str, n: int) -> None:
        self.filepath, self.num_threads = name, n
        self.told: list[int] = []
        self.when_told: Callable[[int], None] = lambda n: None

    def set_num_threads(self, n: int) -> None:
        self.num_threads = n
        self.told.append(n)
        self.when_told(n)


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_LIMIT", blas._Limit())


def with_libraries(monkeypatch: pytest.MonkeyPatch, n_threads: Sequence[int]) -> list[Library]:
    libraries = [Library(f"{i}.so", n) for i, n in enumerate(n_threads)]
    monkeypatch.setattr(Blas, "_pools", libraries)
    return libraries


@pytest.mark.parametrize("n_threads", [(1, 4), (4, 1), (4, 2)])
def test_all_libraries_are_limited_where_one_has_more_threads(
    n_threads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy and SciPy each come with one of their own."""
    libraries = with_libraries(monkeypatch, n_threads)
    with Blas().one_thread():
        assert [library.num_threads for library in libraries] == [1, 1]
        assert Blas().n_threads == 1
    assert tuple(library.num_threads for library in libraries) == n_threads


def test_libraries_of_one_thread_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = with_libraries(monkeypatch, (1, 1))
    with Blas().one_thread():
        pass
    assert [library.told for library in libraries] == [[], []]


def test_who_is_done_first_leaves_the_limit_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a user's own, each with a run."""
    [library] = with_libraries(monkeypatch, (4,))
    first, second, third = ExitStack(), ExitStack(), ExitStack()
    first.enter_context(Blas().one_thread())
    second.enter_context(Blas().one_thread())
    first.close()
    assert library.num_threads == 1
    third.enter_context(Blas().one_thread())
    second.close()
    assert library.num_threads == 1
    third.close()
    assert library.num_threads == 4


@pytest.mark.parametrize("interrupted", [1, 4])
@pytest.mark.parametrize("which", [0, 1])
def test_an_interrupt_leaves_no_limit(
    which: int, interrupted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes while limits are set, and while they are undone."""
    libraries = with_libraries(monkeypatch, (4, 4))

    def interrupt(n: int) -> None:
        if n == interrupted:
            raise KeyboardInterrupt

    libraries[which].when_told = interrupt
    with pytest.raises(KeyboardInterrupt), Blas().one_thread():
        pass
    assert [library.num_threads for library in libraries] == [4, 4]
    libraries[which].when_told = lambda n: None
    with Blas().one_thread():
        assert [library.num_threads for library in libraries] == [1, 1]
    assert [library.num_threads for library in libraries] == [4, 4]


def test_one_who_cannot_say_that_he_is_done_does_not_keep_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [library] = with_libraries(monkeypatch, (4,))
    blas._LIMIT._holders.add(blas._Holder())
    with Blas().one_thread():
        assert library.num_threads == 1
    assert library.num_threads == 4


def test_a_library_that_another_thread_limits_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As OpenBLAS is: to undo what was not done would undo the other's limit."""
    [library] = with_libraries(monkeypatch, (2,))
    library.set_num_threads = lambda n: library.told.append(n)
    with Blas().one_thread():
        library.num_threads = 4
    assert (library.told, library.num_threads) == ([1], 4)


@pytest.fixture
def pools() -> Iterator[Sequence[Pool]]:
    """Libraries that are loaded, which have two threads each."""
    found: Any = ThreadpoolController().select(user_api="blas")
    pools: Sequence[Pool] = found.lib_controllers
    with threadpool_limits(2, "blas"):
        for pool in pools:
            # As threadpoolctl has it without a limit, from 3.8 on.
            getattr(pool, "clear_controlling_thread", bool)()
        yield pools


def test_the_last_thread_undoes_what_the_first_has_done(pools: Sequence[Pool]) -> None:
    """OpenBLAS is the first one's to limit while that one lives."""
    meet = Barrier(2)

    def first() -> None:
        with Blas().one_thread():
            meet.wait(30)
            meet.wait(30)
        meet.wait(30)
        meet.wait(30)

    thread = Thread(target=first)
    thread.start()
    meet.wait(30)
    with Blas().one_thread():
        meet.wait(30)
        meet.wait(30)
        seen = {pool.num_threads for pool in pools}
    after = {pool.num_threads for pool in pools}
    meet.wait(30)
    thread.join()
    assert (seen, after) == ({1}, {2})
