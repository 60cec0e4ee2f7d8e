"""Work in the order in which it is given, in a thread beside its caller or in the caller's own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial


class Beside:
    """Calls made in one thread, one after another, while the caller goes on.

    At most one waits for another. Behind a call that failed no other is made.

    Examples
    --------
    >>> done = []
    >>> beside = Beside()
    >>> for number in range(3):
    ...     beside.do(partial(done.append, number))
    >>> beside.wait()
    >>> done
    [0, 1, 2]
    >>> beside.close()
    """

    def __init__(self) -> None:
        # The thread starts with the first call.
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] = Future()
        self._last.set_result(None)

    def do(self, call: Callable[[], None]) -> None:
        """Have `call` made behind the one before, for which the caller waits.

        Raises
        ------
        BaseException
            What the one before has raised.
        """
        before = self._last
        # Interrupted from here on, the caller finds it waited for by :meth:`wait`.
        self._last = self._pool.submit(partial(_made_behind, before, call))
        before.result()

    def wait(self) -> None:
        """Until all calls are made.

        Raises
        ------
        BaseException
            What the first that failed has raised.
        """
        self._last.result()

    def close(self) -> None:
        """End the thread, when all calls are made."""
        self._pool.shutdown()


class InTurn:
    """In place of :class:`Beside` where the caller must wait: each call is made when it is given.

    What a call raises, it raises there.
    """

    def do(self, call: Callable[[], None]) -> None:
        """Make the call."""
        call()

    def wait(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is no thread."""


def _made_behind(before: Future[None], call: Callable[[], None]) -> None:
    # It is over: there is one thread.
    before.result()
    call()
