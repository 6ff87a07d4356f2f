"""The drafting methods: in come the text so far and a budget, out goes a tree of guessed tokens with probabilities.

It imports ``slipstream.models`` alone; ``registry`` makes a method by its name, and torch is used in ``training`` only.
"""
