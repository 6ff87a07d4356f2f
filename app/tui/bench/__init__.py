"""The benchmark screen: a form, the list of results, and one result or the running benchmark.

In come stored results and updates of a run; out goes a plan, which the chat runs as a command. It may import
``app.bench`` and the parts of screens.
"""
