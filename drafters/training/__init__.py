"""Trains heads for any GGUF (``slipstream drafters train``): the only place in Slipstream that imports torch.

``family/`` holds the recipe of the bundled models, in a checkout only:
``python -m slipstream.drafters.training family --data DIR --out DIR``.
"""
