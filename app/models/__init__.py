"""The model manager: what the commands and the screen do with models."""
