"""Modes of PyTensor's that compile in one thread without a word to the others."""

from typing import Any

from pytensor import config
from pytensor.compile.aliasing import insert_deepcopy
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import Mode, get_mode


class OwnMode(Mode):
    """A mode that is in force where it is asked for alone.

    While PyTensor rewrites a graph, the mode it does so in is the one of the whole process:
    functions that other threads compile meanwhile are compiled in it too, and of two threads that
    do so at once the last can leave it behind for good.
    """

    @classmethod
    def of(cls, name: str) -> "OwnMode":
        """PyTensor's own of this name."""
        theirs = get_mode(name)
        return cls(theirs.linker, theirs.provided_optimizer)

    @property
    def function_maker(self) -> type[FunctionMaker]:
        """See PyTensor's ``Mode``."""
        return _Maker


class _Maker(FunctionMaker):
    @staticmethod
    def prepare_fgraph(
        inputs: Any, outputs: Any, additional_outputs: Any, fgraph: Any, mode: Mode, profile: Any
    ) -> None:
        """See PyTensor's ``FunctionMaker``. Rewrites that depend on the mode ask the graph."""
        with config.change_flags(traceback__limit=config.traceback__compile_limit):
            mode.optimizer(fgraph)
            insert_deepcopy(fgraph, inputs, [*outputs, *additional_outputs])
