"""The engine: the loop, its statistics, and the child process it runs in."""
