"""Chains that are answered together get what each would get alone."""

from collections.abc import Generator, Sequence

from pymc_deer.lockstep import in_lockstep


def countdown(n: int) -> Generator[int, int, str]:
    while n > 0:
        n = yield n
    return f"over at {n}"


def test_each_is_sent_its_own_answer_until_it_is_over() -> None:
    asked: list[Sequence[int]] = []

    def one_less(requests: Sequence[int]) -> list[int]:
        asked.append(list(requests))
        return [n - 1 for n in requests]

    assert in_lockstep([countdown(n) for n in (2, 0, 3)], one_less) == ["over at 0"] * 3
    assert asked == [[2, 3], [1, 2], [1]]


def test_nothing_is_asked_for_nobody() -> None:
    assert in_lockstep([countdown(0), countdown(-1)], lambda asked: asked) == [
        "over at 0",
        "over at -1",
    ]
