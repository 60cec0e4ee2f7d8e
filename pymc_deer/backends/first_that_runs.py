"""A program in the first of several forms that the device can run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax


def first_that_runs(
    forms: Sequence[Callable[[], Callable[..., Any]]], left_out: Callable[[Exception], None]
) -> Callable[..., Any]:
    """A program that :class:`FirstThatRuns` has the choice of, or the only one, built at once."""
    return forms[0]() if len(forms) == 1 else FirstThatRuns(forms, left_out)


class FirstThatRuns:
    """Built when it is first called, and from then on in the form that ran.

    Whether the device runs a form, XLA says when it compiles it: kernels of ours may take more of
    some resource than the device has.

    Parameters
    ----------
    forms
        Build the program in one form each, the preferred one first. What the last one raises is
        raised. Those that cannot be built are passed over; of what goes wrong when others run
        `left_out` is told.
    """

    def __init__(
        self,
        forms: Sequence[Callable[[], Callable[..., Any]]],
        left_out: Callable[[Exception], None],
    ) -> None:
        self._forms, self._left_out = forms, left_out
        self._program: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._program is not None:
            return self._program(*arguments)
        *preferred, last = self._forms
        for form in preferred:
            try:
                program = form()
            except Exception:  # noqa: BLE001 - whatever is missing, the next form may do without
                continue
            try:
                results = program(*arguments)
            except Exception as error:
                if _is_used_up(arguments) or "Out of memory" in str(error):
                    # It has run, or would have if there were room: the form is none the worse. Of
                    # RESOURCE_EXHAUSTED other kinds are what a kernel asks too much of.
                    raise
                self._left_out(error)
                continue
            self._program = program
            return results
        self._program = last()
        return self._program(*arguments)


def _is_used_up(arguments: Any) -> bool:
    """Whether a program has taken over the memory of some of its arguments."""
    arrays = (a for a in jax.tree.leaves(arguments) if isinstance(a, jax.Array))
    return any(array.is_deleted() for array in arrays)
