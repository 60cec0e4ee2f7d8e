"""Results of the JAX backend, from where they were computed to where they belong."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from pymc_deer.backends.jax_loops import asked_rows
from pymc_deer.backends.placement import OneDevice
from pymc_deer.backends.request import Job

_FETCHED = 2**26
"""Bytes that a device hands over in less time than it takes to compile what picks some of them."""


@dataclass(frozen=True)
class Results:
    """Copies what is asked for of buffers, `SOLVED` of all chains, (C, rows, ...).

    The first chains are those that were asked for; there may be more.

    Attributes
    ----------
    placement
        Where they are.
    picks
        Whether the device, which is not the host, picks what is asked for of much.
    """

    placement: OneDevice
    picks: bool

    def write_kept(
        self, filled: Sequence[jax.Array], jobs: Sequence[Job], firsts: Sequence[int], stride: int
    ) -> None:
        """What a sequential loop has kept of each chain's transitions from a row on.

        The buffers have a row for where the loop began, and behind it one for each transition of a
        call, or for each `stride` where the loop kept no more.
        """
        first, names = 1, jobs[0].buffers.names
        asked = self._asked(filled, jobs)
        if stride > 1 and self._is_much(asked):
            kept = slice(first, first - (-(filled[0].shape[1] - 1) // stride))
            asked, first = asked_rows(asked, names, first, kept), 0
        arrays = self.placement.fetched(asked)
        for i, (job, at) in enumerate(zip(jobs, firsts, strict=True)):
            n, own = len(job.noise.log_u) - at, [array[i, first:] for array in arrays]
            if stride == job.buffers.stride:
                job.buffers.write_kept(at, n, own)
            else:
                job.buffers.write(at, [rows[:n] for rows in own])

    def write(self, filled: Sequence[jax.Array], jobs: Sequence[Job], done: Sequence[int]) -> None:
        """The rows that each chain has done."""
        buffers, n = jobs[0].buffers, len(jobs[0].noise.log_u)
        stride, asked = buffers.stride, self._asked(filled, jobs)
        if stride > 1 and n % stride == 0 and set(done) == {n} and self._is_much(asked):
            kept = slice(stride - 1, None, stride)
            arrays = self.placement.fetched(asked_rows(asked, buffers.names, 0, kept))
            for i, job in enumerate(jobs):
                job.buffers.write_kept(0, n, [array[i] for array in arrays])
            return
        arrays = self.placement.fetched(asked)
        for i, (job, n_done) in enumerate(zip(jobs, done, strict=True)):
            job.buffers.write(0, [array[i, :n_done] for array in arrays])

    def _asked(self, filled: Sequence[jax.Array], jobs: Sequence[Job]) -> tuple[jax.Array, ...]:
        asked = jobs[0].buffers.of_solved(filled)
        # What devices share is brought together whole.
        few = len(jobs) < len(filled[0]) and not self.placement.is_many
        return tuple(a[: len(jobs)] for a in asked) if few and self._is_much(asked) else asked

    def _is_much(self, arrays: Sequence[jax.Array]) -> bool:
        return self.picks and sum(array.nbytes for array in arrays) > _FETCHED
