"""The child process that the engine runs in, and its client.

In: calls of the interface. Out: the events of the process, why it ended, and the changes of its next start.
The client's side imports neither numpy nor llama.cpp.
"""
