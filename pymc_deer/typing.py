"""Names for types that static checkers cannot see."""

from typing import Any

Tensor = Any
"""A symbolic PyTensor variable. PyTensor's own annotations give most functions no usable return
type, so that checking against them finds only their gaps."""
