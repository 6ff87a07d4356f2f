"""What this machine has and lends.

In: llama.cpp's report, the system's lists, the settings. Out: the report of ``doctor``; a server for other machines.
May import: ``app.library``, ``app.engine`` and what these may import.
"""
