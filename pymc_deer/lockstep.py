"""Several chains that ask for the same kind of thing, and are answered together."""

from collections.abc import Callable, Generator, Sequence
from typing import Any


def in_lockstep[Q, A, R](
    asking: Sequence[Generator[Q, A, R]], answer: Callable[[Sequence[Q]], Sequence[A]]
) -> list[R]:
    """What each of several generators returns, in their order.

    Parameters
    ----------
    asking
        Each yields requests, and is sent the answers.
    answer
        Answers one request of each that is not over.

    Examples
    --------
    >>> def first_power(base, least):
    ...     power = 1
    ...     while power < least:
    ...         power = yield base, power
    ...     return power
    >>> def multiply(asked):
    ...     return [base * power for base, power in asked]
    >>> in_lockstep([first_power(2, 5), first_power(3, 80)], multiply)
    [8, 81]
    """
    results: dict[int, R] = {}
    # A generator begins when it is sent None.
    answers: dict[int, Any] = dict.fromkeys(range(len(asking)))
    while answers:
        requests: dict[int, Q] = {}
        for i, value in answers.items():
            try:
                requests[i] = asking[i].send(value)
            except StopIteration as over:
                results[i] = over.value
        found = answer(list(requests.values())) if requests else ()
        answers = dict(zip(requests, found, strict=True))
    return [results[i] for i in range(len(asking))]
