"""Paths, the terminal's text filter, and what else depends on the system."""
