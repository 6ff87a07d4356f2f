"""Renders chat templates in a sandbox.

In: a template from a model file, and messages. Out: pieces of text, each the template's own or of one message.
May import: ``models.errors``, ``models.outside``.
"""
