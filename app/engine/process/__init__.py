"""The engine's child process: client, worker, frames, watchdog, recovery."""
