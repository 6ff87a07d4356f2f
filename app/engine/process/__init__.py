"""The engine's child process: client, worker, protocol, watchdog, recovery."""
