"""What a run of `pymc_deer.sample` is asked for, and whether a run that goes on agrees."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from pymc_deer.chains.calibration import Calibration
from pymc_deer.options import OPTIONS, BackendName, Options, is_integer, listed, refuse_seed
from pymc_deer.status import OptionError, invalid_option
from pymc_deer.sweep import Kernel

DRAWS, CHAINS = 1000, 4
"""Of each chain, if nothing else is said."""


@dataclass(frozen=True)
class Settings:
    """Arguments of `pymc_deer.sample` that the draws, or the groups they are in, follow from.

    Attributes
    ----------
    draws, kernel, tune, chains, var_names, random_seed, discard_tuned_samples
        As in `pymc_deer.sample`.
    options
        Options of the step.

    Raises
    ------
    OptionError
        If a number of draws or of chains, or a seed, is not what is accepted.
    """

    draws: int = DRAWS
    kernel: Kernel = "hmc"
    tune: int | None = None
    chains: int = CHAINS
    var_names: Sequence[str] | None = None
    random_seed: Any = None
    discard_tuned_samples: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("chains", 1), ("tune", 0)):
            value = getattr(self, name)
            if not (is_integer(value, least) or (name == "tune" and value is None)):
                raise invalid_option("sample", name, value, f"an integer of at least {least}")
            # Python's own: others may overflow, and cannot be stored.
            object.__setattr__(self, name, None if value is None else int(value))
        refuse_seed("sample", "random_seed", self.random_seed)

    def stored(self, options: Options) -> "Settings":
        """In types that can be stored, with all options of the step.

        A function can not be stored: of `hvp` only whether it was given. Of a window that memory
        has made narrower it is the one that was asked for.
        """
        names = self.var_names
        options = replace(options, window=self.options.get("window", options.window))
        every = {f.name: getattr(options, f.name) for f in fields(options)}
        if not isinstance(options.metric, str):
            every["metric"] = np.asarray(options.metric)
        return replace(
            self,
            var_names=None if names is None else list(names),
            random_seed=_numbers(self.random_seed),
            options={**every, "hvp": options.hvp is not None},
        )

    def refuse_contradictions(self, given: "Settings", path: Path) -> None:
        """Refuse arguments that are neither those of the run that goes on, nor left out, but for
        `draws`.

        Parameters
        ----------
        given
            What `pymc_deer.sample` was now given; an argument at its default counts as left out.
        path
            Where the run is.

        Raises
        ------
        OptionError
            Naming the argument.
        """
        if unknown := given.options.keys() - self.options.keys():
            raise OptionError(
                f"sample(resume={str(path)!r}): the run's {self.kernel} kernel has no argument "
                f"{', '.join(sorted(unknown))}; it takes {', '.join(self.options)}."
            )
        default = Settings()
        pairs = {
            f.name: (getattr(given, f.name), getattr(self, f.name))
            for f in fields(self)
            if f.name not in ("draws", "options")
            and not _same(getattr(given, f.name), getattr(default, f.name))
        }
        if "var_names" in pairs:
            # In any order, which sets do not keep.
            now, then = pairs["var_names"]
            pairs["var_names"] = sorted(listed(now), key=str), then and sorted(then)
        of_step = OPTIONS[self.kernel]()
        pairs |= {
            name: (value, self.options.get(name))
            for name, value in given.options.items()
            if name != "hvp" and not _same(value, getattr(of_step, name))
        }
        if self.random_seed is None and _numbers(given.random_seed) is None:
            # Of a generator or a SeedSequence nothing is stored, nor is it needed any more.
            pairs.pop("random_seed", None)
        for name, (now, then) in pairs.items():
            if not _same(now, then):
                raise OptionError(
                    f"sample(resume={str(path)!r}): the run was begun with {name}={then!r}, not "
                    f"{now!r}. Leave {name} out; or begin another run, with store=."
                )
        if self.options["hvp"] != (given.options.get("hvp") is not None):
            word = "with" if self.options["hvp"] else "without"
            raise OptionError(
                f"sample(resume={str(path)!r}): the run was begun {word} hvp, a function, which is "
                f"not stored: go on {word} it."
            )

    def step_options(self, backend: BackendName, calibration: Calibration) -> dict[str, Any]:
        """Options with which the step is made as it was, without measuring again.

        Parameters
        ----------
        backend, calibration
            What the run's step had chosen.
        """
        chosen = {
            name: getattr(calibration, name)
            for name in ("window", "jacobian", "curvature", "max_sweeps")
        }
        options = {name: value for name, value in self.options.items() if name != "hvp"}
        return {**options, "backend": backend, **chosen}


def _numbers(seed: Any) -> int | list[int] | None:
    """An integer, of any size, or a sequence of some, in Python's own; None of anything else."""
    if is_integer(seed, -np.inf):
        return int(seed)
    of_many = isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes)
    if of_many and all(is_integer(number, -np.inf) for number in seed):
        return [int(number) for number in seed]
    return None


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    # An array compares with a string number by number.
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    try:
        return np.array_equal(np.asarray(one), np.asarray(other))
    except (TypeError, ValueError):
        return False
