"""Whether a model fits this machine."""
