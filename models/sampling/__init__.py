"""The sampler, its keyed noise, and the best tokens of a row."""
