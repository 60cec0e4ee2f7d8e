"""Graphs of a model: read and checked, and written anew for fewer operations."""
