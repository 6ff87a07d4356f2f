"""Chat templates in a sandbox."""
