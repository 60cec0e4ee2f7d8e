"""The noise tape: every random number of a stretch of chain, drawn before it is run.

Row t of the tape depends on the seed and on t alone, not on how the chain is cut into windows or
blocks, nor on the backend; momenta that a device makes depend on the dtype besides. This is what
makes the chain's states a function of the seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pymc_deer.duplicate import duplicate

NoiseSource = Literal["host", "device"]
"""Where momenta are made: on the host for any backend, or by JAX from the keys of a tape."""

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""Momenta of transitions, or their keys: from a generator, for how many transitions, and D."""


class _NoSeed(np.random.bit_generator.ISeedSequence):
    """For generators whose state is set next: hashing a seed takes longer than all else."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype)


def generator_at(kind: Any, state: Mapping[str, Any]) -> np.random.Generator:
    """A generator of a kind of bit generator, in that state."""
    bits = kind(_NoSeed())
    bits.state = state
    return np.random.Generator(bits)


def twin(rng: np.random.Generator) -> np.random.Generator:
    """A generator that gives the same numbers."""
    return generator_at(type(rng.bit_generator), rng.bit_generator.state)


_BLOCK_NUMBERS = 2**13
"""Numbers drawn at a time, 64 KiB, where fewer are asked for."""


@dataclass(frozen=True)
class Rows:
    """Random numbers in rows, of which the next ones are known before they are asked for.

    A stretch begins from a copy of its noise, so that it can be given up, and to copy a generator
    takes longer than to draw what a short stretch needs. So a block of rows is drawn at a time, of
    which `Rows` that follow on one another share all and differ in how many are out. Nothing of one
    ever changes.

    Attributes
    ----------
    rng
        The generator, before the block.
    used
        Rows of the block that are out.
    """

    rng: np.random.Generator
    used: int = 0

    def take(
        self, n: int, draw: Callable[[np.random.Generator, int], np.ndarray], size: int = 1
    ) -> "tuple[np.ndarray, Rows]":
        """The next n rows, and those behind them.

        Parameters
        ----------
        draw
            As many rows as it is asked for, of a generator.
        size
            Numbers in a row.
        """
        block, behind = vars(self).get("_block") or _drawn(self.rng, self.used, draw)
        end = self.used + n
        if end <= len(block):
            return block[self.used : end], duplicate(self, used=end)
        missing = end - len(block)
        more, after = _drawn(behind, max(missing, _BLOCK_NUMBERS // size), draw)
        left = block[self.used :]
        # Where none is left the rows are passed on as they are: they can be millions of numbers.
        rows = np.concatenate([left, more[:missing]]) if len(left) else more[:missing]
        if missing == len(more):
            return rows, Rows(after)
        return rows, duplicate(self, rng=behind, used=missing, _block=(more, after))

    def __getstate__(self) -> dict[str, Any]:
        return {"rng": self.rng, "used": self.used}


def _drawn(
    rng: np.random.Generator, n: int, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> tuple[np.ndarray, np.random.Generator]:
    """The next n rows, and the generator behind them."""
    behind = twin(rng)
    return draw(behind, n), behind


@dataclass(frozen=True)
class Tape:
    """Noise of n transitions.

    Attributes
    ----------
    xi
        Momenta, shape (n, D), or the keys, shape (n,), from which the device makes them.
    log_u
        Logarithms of the uniform numbers of the Metropolis tests, shape (n,).
    scale
        What each transition's step size is multiplied by, shape (n,); None is 1 throughout.
    n_leapfrog
        Leapfrog steps of each transition, integers (n,); None is 1 throughout.
    """

    xi: np.ndarray
    log_u: np.ndarray
    scale: np.ndarray | None = None
    n_leapfrog: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.log_u)

    def __getitem__(self, rows: slice) -> "Tape":
        optional = (self.scale, self.n_leapfrog)
        some = (None if column is None else column[rows] for column in optional)
        return Tape(self.xi[rows], self.log_u[rows], *some)

    @property
    def lengths(self) -> np.ndarray:
        """Leapfrog steps of each transition, shape (n,)."""
        return np.ones(len(self), dtype=np.int64) if self.n_leapfrog is None else self.n_leapfrog

    def step_sizes(self, step_size: float) -> np.ndarray:
        """Step size of each transition, shape (n,)."""
        return np.full(len(self), step_size) if self.scale is None else step_size * self.scale


_SMALLEST_STEP = 0.1
"""Of the step size, where it is smaller than usual."""


def step_scales(shares: np.ndarray, jitter: float, small_steps: float) -> np.ndarray:
    """What transitions' step sizes are multiplied by, from uniform numbers in [0, 1), shape (n,).

    A share `small_steps` of them by numbers from 1/10 to 1 with uniform logarithms; the others by
    numbers uniform within `jitter` of 1.
    """
    if not small_steps:
        return 1.0 + jitter * (2.0 * shares - 1.0)
    others = (shares - small_steps) / (1.0 - small_steps)
    scales = 1.0 + jitter * (2.0 * others - 1.0)
    is_small = others < 0
    scales[is_small] = _SMALLEST_STEP ** (shares[is_small] / small_steps)
    return scales


def draw_normals(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """The next n rows of momenta, shape (n, D)."""
    return rng.standard_normal((n, size))


def draw_keys(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """The next n keys of momenta, shape (n,), whatever D is."""
    return rng.integers(2**64, size=n, dtype=np.uint64)


def draw_log_u(rng: np.random.Generator, n: int) -> np.ndarray:
    """The next n rows of log u, shape (n,)."""
    return -rng.standard_exponential(n)


def draw_tape(
    normal: np.random.Generator,
    uniform: np.random.Generator,
    n: int,
    size: int,
    draw: Draw = draw_normals,
) -> Tape:
    """The next n rows of the tape.

    The momenta and the Metropolis tests have a generator each, so that the numbers a transition
    gets do not depend on how many transitions are drawn at a time. Numbers are drawn in float64
    whatever the dtype of the chain: float32 runs follow their float64 counterparts.

    Parameters
    ----------
    normal, uniform
        Generators of xi and of log u (minus a standard exponential).
    n, size
        Number of transitions and dimension D.
    draw
        Momenta, or their keys.
    """
    return Tape(draw(normal, n, size), draw_log_u(uniform, n))
