"""The drafting methods: in come the text so far and a budget, out goes a tree of guessed tokens with probabilities.

It imports ``slipstream.models`` alone; ``registry`` makes a method by its name, and torch is used in ``training`` only.
A new method is a file like this one, which a test runs as it stands, and its ``METHOD`` in ``registry.METHODS``. Only
``name`` and ``draft`` must be there; ``auto`` may use it unless its ``Method`` has ``auto=False``::

    \"\"\"Drafter ``again``: guesses that what followed a token last time follows it again.\"\"\"

    from itertools import pairwise

    from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step
    from slipstream.drafters.calibration import Ratio
    from slipstream.drafters.resources import Method
    from slipstream.drafters.tree import chain_draft
    from slipstream.models.sampling.sampler import Sampler
    from slipstream.models.types import History, Token

    class Again(Drafter):
        name = "again"

        def __init__(self) -> None:
            self._next: dict[Token, Token] = {}
            self._right = Ratio(0.95, 8.0, 10.0)  # decay, right, tried: 0.8 at first; by name, below 0.5 is refused

        def begin(self, history: History) -> None:  # a reply begins: this is its prompt
            self._next = dict(pairwise(history.tokens))

        def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
            token, prob, guesses = history.tokens[-1], self._right.value(), list[Token]()
            while token in self._next and should_extend(prob ** (len(guesses) + 1), len(guesses) + 1):
                token = self._next[token]
                guesses.append(token)
            return chain_draft(guesses, [prob] * len(guesses), self.name)

        def observe(self, history: History, step: Step) -> None:  # also after steps in which nothing was drafted
            for token, following in pairwise(history.tokens[-len(step.tokens) - 1 :]):
                if token in self._next:
                    self._right.add(self._next[token] == following, 1.0)
                self._next[token] = following

    METHOD = Method(Again.name, lambda _: Again(), about="repeats what followed the last token before")
"""
