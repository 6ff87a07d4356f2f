"""Estimates whether a model fits this machine, and how fast it will be."""
