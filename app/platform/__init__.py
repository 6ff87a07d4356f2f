"""Paths, the terminal's text filter, and other code that depends on the operating system."""
