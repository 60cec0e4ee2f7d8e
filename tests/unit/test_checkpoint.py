"""What a checkpoint is made of can be read back."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pymc_deer.sampling.checkpoint import _CLASSES, Checkpoint


def classes_within(hint: Any) -> set[type]:
    """The dataclasses that values of that type may hold, itself among them."""
    found: set[type] = set()
    waiting = [hint]
    while waiting:
        here = waiting.pop()
        waiting += get_args(here)
        if isinstance(here, type) and is_dataclass(here) and here not in found:
            found.add(here)
            hints = get_type_hints(here)
            waiting += [hints[field.name] for field in fields(here)]
    return found


def test_all_classes_of_a_checkpoint_are_known_to_its_reader() -> None:
    """Some are in one only while a model with angles, say, warms up."""
    assert classes_within(Checkpoint) == set(_CLASSES)
