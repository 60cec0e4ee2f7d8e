"""Chains, stretch by stretch: prepared, calibrated and solved, one alone or several together."""
