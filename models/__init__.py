"""Finds, downloads, checks and runs models."""
