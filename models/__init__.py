"""Weights: find, fetch, check, run."""
