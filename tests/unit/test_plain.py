"""What is packed comes back as it was, and nothing else is made of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_deer.noise import Rows
from pymc_deer.sampling.plain import packed, unpacked


@dataclass
class Pair:
    first: Any
    second: Any


SCALARS = [None, True, 3, 2**100, 0.1, np.inf, "a", np.float64(0.1), np.float32(0.1), np.int64(3)]


@pytest.mark.parametrize("value", [*SCALARS, np.bool_(True)], ids=repr)
def test_scalars_keep_their_types(value: Any) -> None:
    """What is computed with NumPy's is of other types than what is with Python's."""
    found = unpacked(packed({"value": value}), [])["value"]
    assert type(found) is type(value)
    assert found == value


def test_what_was_one_object_is_one_again() -> None:
    array, other = np.arange(3.0), np.arange(3.0)
    value = Pair([array, other, array], Pair(array, None))
    found = unpacked(packed([value, value]), [Pair])
    assert found[0] is found[1]
    one, two, three = found[0].first
    assert one is three
    assert one is found[0].second.first
    assert one is not two
    assert_array_equal(two, array)


def test_generators_go_on_where_they_were() -> None:
    rng = np.random.Generator(np.random.Philox(3))
    rng.random(5, dtype=np.float32)
    found = unpacked(packed({"rng": rng, "rows": (Rows(rng),)}), [Rows])
    for again in (found["rng"], found["rows"][0].rng):
        assert again.bit_generator.state["bit_generator"] == "Philox"
    expected = rng.random(3, dtype=np.float32)
    assert_array_equal(found["rng"].random(3, dtype=np.float32), expected)


def test_other_objects_are_neither_packed_nor_made() -> None:
    for value in (object(), {1, 2}, np.array([object()]), np.array(["2020"], "datetime64"), Pair):
        with pytest.raises(TypeError, match="is nothing that can be stored"):
            packed([value])
    with pytest.raises(KeyError):
        unpacked(packed(Pair(1, 2)), [Rows])
