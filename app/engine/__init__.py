"""Loads models, and writes replies step by step with any drafter.

In: requests of ``app.protocol`` and model files. Out: events of ``app.protocol``; kept KV caches and measurements.
May import: ``app.chats``, ``app.platform``, ``drafters``, ``models``.
"""
