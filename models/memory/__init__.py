"""Estimates whether a model fits this machine, and how fast it will be.

In come a header or the size of a file, and the devices; out come a placement with its reasons, and a limit of speed.
It may import ``gguf``, and of ``llama`` only what does not load llama.cpp.
"""
