"""Trains heads for any GGUF (``slipstream drafters train``): in come a model and a text, out goes a file of heads.

It runs the model through ``slipstream.models`` and is the only package that imports torch.
"""
