"""The benchmark: what this machine does, and what drafting gains on it."""
