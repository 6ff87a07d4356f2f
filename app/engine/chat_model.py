"""A loaded chat model: its vocabulary, and the makers of its prompts, samplers and guides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.app.engine.calibrate import Threads
from slipstream.app.engine.guide import Guide, GuideVocabulary
from slipstream.app.engine.prompt import Prompt, PromptBuilder
from slipstream.app.engine.stats import OtherPrograms, PlainClock, SpillWatch
from slipstream.app.engine.text import ChatVocabulary
from slipstream.app.protocol.events import reasoning_levels
from slipstream.app.protocol.requests import Generate, Sampling
from slipstream.models.chat_template import AUTO_LEVEL
from slipstream.models.llama.target import Target
from slipstream.models.sampling.bias import bias_of
from slipstream.models.sampling.sampler import BREAKERS, Sampler
from slipstream.models.types import Token

if TYPE_CHECKING:  # grammars are seldom used
    from slipstream.models.grammar.matching import GrammarTokens


@dataclass(slots=True)
class ChatModel:
    """A loaded chat model; other code may use its target between replies."""

    target: Target
    vocabulary: ChatVocabulary
    prompts: PromptBuilder
    plain: PlainClock
    others: OtherPrograms = field(default_factory=OtherPrograms)
    threads: Threads | None = None
    spill: SpillWatch | None = None  # of a model on GPUs
    end_marks: tuple[str, ...] = ()  # texts that end a reply, see ``PromptBuilder.turn_ends``
    max_tokens: int = 0  # most tokens of a reply without another limit; 0 for no limit
    new_remarks: Callable[[], dict[str, str]] = dict
    same_text: bool = False
    _breakers: frozenset[Token] | None = None
    _grammar_tokens: GrammarTokens | None = None
    _reported_levels: set[str] = field(default_factory=set)

    def sampler(self, sampling: Sampling) -> Sampler:
        n_vocab = self.target.abilities.n_vocab
        bias = bias_of(sampling.logit_bias, self.prompts.tokens_of, n_vocab)
        if sampling.dry and self._breakers is None:  # some 0.2 s for a large vocabulary
            pieces = ((token, self.vocabulary.piece(token)) for token in range(n_vocab))
            self._breakers = frozenset(token for token, raw in pieces if any(map(raw.__contains__, BREAKERS)))
        return Sampler(**sampling.drawing(), bias=bias, breakers=self._breakers or frozenset())

    def guide(self, request: Generate, sampler: Sampler, prompt: Prompt) -> Guide:
        budget, tokenize = request.sampling.reasoning_budget, self.prompts.control_tokens
        matcher = None
        if request.grammar:
            from slipstream.models.grammar.matching import GrammarTokens, matcher_of  # seldom needed

            if self._grammar_tokens is None:
                pieces = [self.vocabulary.piece(token) for token in range(self.target.abilities.n_vocab)]
                self._grammar_tokens = GrammarTokens(pieces, self.vocabulary.ends, self.prompts.tokens_of, tokenize)
            matcher = matcher_of(request.grammar_kind, request.grammar, self._grammar_tokens)
        blanks = frozenset(tokens[0] for text in ("\n", "\n\n") if len(tokens := tokenize(text)) == 1)
        vocabulary = GuideVocabulary(self.vocabulary.piece, tokenize, prompt.openers, blanks)
        start = len(prompt.tokens) - prompt.said
        return Guide(sampler, start, prompt.thinks, vocabulary, budget=budget, matcher=matcher)

    def unknown_level(self, level: str) -> dict[str, str]:
        """Remarks that the model lacks this reasoning level, and lists its levels; only once for each level."""
        known = self.prompts.reasoning.switches
        if level == AUTO_LEVEL or level in known or level in self._reported_levels:
            return {}
        self._reported_levels.add(level)
        return {f"this model has no reasoning level {level}.": reasoning_levels(known)}
