"""The sampler, its keyed noise, and the best tokens of a row.

In: logits and the history. Out: a token, or the distribution that it is drawn from; equal keys give equal draws.
May import: ``models.types``, ``models.errors``.
"""
