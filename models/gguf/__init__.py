"""GGUF files: read, checked, written, and tried before they are loaded."""
