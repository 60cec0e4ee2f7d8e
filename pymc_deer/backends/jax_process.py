"""The process that JAX runs in: it has threads, which a fork leaves behind."""

import os
import sys
from typing import ClassVar

from pymc_deer.status import ForkError


class JaxProcess:
    """The first one in which JAX was seen to run, of this process and those it is forked from."""

    pid: ClassVar[int | None] = None

    @classmethod
    def enter(cls) -> None:
        """Run JAX here.

        Raises
        ------
        ForkError
            If that is another process: JAX would hang rather than fail.
        """
        cls.pid = cls.pid or os.getpid()
        if os.getpid() != cls.pid:
            raise ForkError(
                "JAX cannot run in a forked process. Write pm.sample(..., mp_ctx='forkserver') or "
                "pm.sample(..., cores=1); where you have forked it yourself, start it by "
                "multiprocessing.get_context('forkserver'); or write backend='numba'."
            )

    @classmethod
    def forked(cls) -> None:
        """In a process that was forked just now: others may have run JAX in the one before."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        # JAX has no public way to ask. Where a release has not this one, what ran here counts.
        if getattr(bridge, "backends_are_initialized", bool)():
            cls.pid = cls.pid or os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=JaxProcess.forked)
