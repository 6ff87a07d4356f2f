"""Other engines on the same models and prompts; one file an engine, each runs in a process of its own."""
