"""Reads, checks and writes GGUF files, and probes them before they are loaded."""
