"""Renders chat templates in a sandbox."""
