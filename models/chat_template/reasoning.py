"""Which reasoning switches a chat template has: found by rendering it with each, not by the model's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jinja2 import TemplateError, meta

from slipstream.models.chat_template.marks import CLOSING, LEVELS, left_open
from slipstream.models.chat_template.sandbox import TemplateSandbox
from slipstream.models.chat_template.template import ChatTemplate
from slipstream.models.errors import SlipstreamError

_BINARY: Final = ("enable_thinking", "thinking")
_WORDED: Final = ("reasoning_effort", "reasoning_strength", "thinking_effort", "thinking_mode", "thinking_option")
_BUDGET: Final = "thinking_budget"
_EFFORTS: Final = ("low", "medium", "high", "max")
_COMMON_EFFORTS: Final = _EFFORTS[:3]
_OFF: Final = ("none", "no_think", "disabled", "off")
_ON: Final = ("enabled", "on")
_NONSENSE: Final = "xyzzy"
_THOUGHT: Final = "plugh"
_CHAT: Final = ({"role": "user", "content": "Hi"},)


@dataclass(frozen=True, slots=True)
class Switch:
    """How a template is given a level."""

    variables: Mapping[str, object] = field(default_factory=dict)
    word: str = ""  # what is put behind the last message of the user, or empty


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a template offers."""

    switches: Mapping[str, Switch] = field(default_factory=dict)  # the levels that it has, in the order of ``LEVELS``
    default: str = ""  # the level that it takes by itself; empty where that is none of them
    opens: str = ""  # the mark with which it opens the thoughts of replies itself; empty where the model writes it

    def switch(self, level: str) -> Switch:
        """The switch of a level, or of the nearest that the template has; an empty one leaves the choice to it."""
        if level in _EFFORTS and level not in self.switches:
            known = [effort for effort in _EFFORTS if effort in self.switches]
            wanted = _EFFORTS.index(level)
            level = min(known, key=lambda effort: abs(_EFFORTS.index(effort) - wanted)) if known else "on"
        return self.switches.get(level, Switch())


def reasoning_of(template: ChatTemplate) -> Reasoning:
    """Renders a short chat with every switch that the template may have, and compares the texts.

    A word counts as an effort where it gives another text than a word that no template has; a template that writes any
    word into its text takes the three usual ones.
    """
    try:
        tree = TemplateSandbox().parse(template.source)
    except TemplateError:  # the template itself has compiled
        return Reasoning()
    names = meta.find_undeclared_variables(tree)
    shown = _Renderer(template)
    plain = shown.text({})
    if plain is None:
        return Reasoning()
    found: dict[str, Switch] = {}
    binary = [name for name in _BINARY if name in names]
    on: dict[str, object] = dict.fromkeys(binary, True)
    off: dict[str, object] = dict.fromkeys(binary, False)
    if shown.differ(on, off):
        found |= {"on": Switch(on), "off": Switch(off)}
    else:
        on = {}
    for name in (name for name in _WORDED if name in names):
        known = shown.words(name, on)
        found |= {word: Switch({**on, name: word}) for word in _EFFORTS if word in known}
        for level, words in (("off", _OFF), ("on", _ON)):
            if level not in found and (word := next((word for word in words if word in known), "")):
                found[level] = Switch({name: word})
    if _BUDGET in names and "off" not in found and shown.differ({_BUDGET: 0}, {}):
        found["off"] = Switch({_BUDGET: 0})
    if not found and template.words:
        found = shown.by_word(template.words)
    if found and "on" not in found:  # what the template does by itself, unless it does not think then
        efforts = [effort for effort in _COMMON_EFFORTS if effort in found]
        thinks = "off" not in found or shown.of(found["off"]) != plain or not efforts
        found["on"] = Switch() if thinks else found[efforts[-1]]
    texts = {level: shown.of(found[level]) for level in (*_EFFORTS, "on", "off") if level in found}
    default = next((level for level, text in texts.items() if text == plain), "")
    opens = left_open(plain) or left_open(texts.get("on") or "")
    return Reasoning({level: found[level] for level in LEVELS if level in found}, default, opens)


def keeps_thoughts(template: ChatTemplate, opening: str) -> bool:
    """Whether the template leaves the thoughts of an earlier reply in the text, as it does where it has no rule.

    Args:
        template: The template.
        opening: The mark that opens the thoughts.
    """
    reply = f"{opening}\n{_THOUGHT}\n{CLOSING[opening]}\n\nHello"
    text = _Renderer(template).text({}, (*_CHAT, {"role": "assistant", "content": reply}, *_CHAT))
    return text is not None and _THOUGHT in text


class _Renderer:
    """Renders a short chat."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def text(self, variables: Mapping[str, object], chat: Sequence[Mapping[str, str]] = _CHAT) -> str | None:
        """The text; None where the template refuses."""
        try:
            return "".join(part.text for part in self._template.parts(chat, variables=variables))
        except SlipstreamError:
            return None

    def of(self, switch: Switch) -> str | None:
        """The text with a switch."""
        chat = [{**_CHAT[0], "content": with_word(_CHAT[0]["content"], switch.word)}]
        return self.text(switch.variables, chat)

    def differ(self, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
        """Whether both give a text, and not the same."""
        first, second = self.text(one), self.text(other)
        return first is not None and second is not None and first != second

    def words(self, name: str, others: Mapping[str, object]) -> set[str]:
        """The words that a variable takes for more than any word."""
        nonsense = self.text({**others, name: _NONSENSE})
        if nonsense is not None and _NONSENSE in nonsense:
            return {word for word in _COMMON_EFFORTS if self.text({**others, name: word}) is not None}
        texts = {word: self.text({**others, name: word}) for word in (*_EFFORTS, *_OFF, *_ON)}
        return {word for word, text in texts.items() if text is not None and text != nonsense}

    def by_word(self, words: Sequence[str]) -> dict[str, Switch]:
        """Levels that a word in the user's message switches: one does where the rest of the text changes with it."""
        rest = {word: self._rest(word) for word in words}
        off = next((word for word in words if word != "/think" and rest[word] is not None), "")
        if not off or rest[off] == self._rest(""):
            return {}
        found = {"off": Switch(word=off)}
        return found | ({"on": Switch(word="/think")} if "/think" in words else {})

    def _rest(self, word: str) -> str | None:
        """The text with a word in the message, without the word and spaces."""
        text = self.of(Switch(word=word))
        return None if text is None else "".join((text.replace(word, "") if word else text).split())


def with_word(text: str, word: str) -> str:
    """A message with a word behind it."""
    return f"{text} {word}" if word else text
