"""Messages between the interface and the engine's process: length-prefixed JSON over pipes.

A frame is four bytes of length, little-endian, and that many bytes of JSON: ``{"kind": name, ...fields}``.
``slipstream.app.engine.process.frames`` reads and writes them.
"""
