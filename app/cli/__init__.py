"""The command line: words in, text or JSON on standard output, notices on standard error, and an exit code.

One file a command; it parses, calls and prints. May import every room of the app.
"""
