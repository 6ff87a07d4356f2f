"""Runtimes: a model that evaluates token trees."""
