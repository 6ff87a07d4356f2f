"""Finds the reasoning switches of a chat template by rendering it with each switch, not by the model's name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jinja2 import TemplateError, meta

from slipstream.models.chat_template import CLOSING, LEVELS, left_open
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
    """Selects a reasoning level in a template."""

    variables: Mapping[str, object] = field(default_factory=dict)
    word: str = ""  # appended to the user's last message; may be empty


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning levels of a template."""

    switches: Mapping[str, Switch] = field(default_factory=dict)  # level to its switch, in the order of ``LEVELS``
    default: str = ""  # the level without a switch; empty if it is not one of ``switches``
    opens: str = ""  # the mark that the template writes to open a reply's reasoning; empty if the model writes it

    def switch(self, level: str) -> Switch:
        """The switch of a level, or of the nearest level that exists; an empty switch keeps the template's default."""
        if level in _EFFORTS and level not in self.switches:
            known = [effort for effort in _EFFORTS if effort in self.switches]
            wanted = _EFFORTS.index(level)
            level = min(known, key=lambda effort: abs(_EFFORTS.index(effort) - wanted)) if known else "on"
        return self.switches.get(level, Switch())


def reasoning_of(template: ChatTemplate) -> Reasoning:
    """Renders a short chat with every switch that the template may have, and compares the texts.

    A word is a level of effort if its text differs from the text for an unknown word. A template that copies any word
    into its text gets the three common levels.
    """
    try:
        tree = TemplateSandbox().parse(template.source)
    except TemplateError:  # unlikely, since the template has compiled
        return Reasoning()
    names = meta.find_undeclared_variables(tree)
    renderer = _Renderer(template)
    plain = renderer.text({})
    if plain is None:
        return Reasoning()
    found: dict[str, Switch] = {}
    binary = [name for name in _BINARY if name in names]
    on: dict[str, object] = dict.fromkeys(binary, True)
    off: dict[str, object] = dict.fromkeys(binary, False)
    if renderer.differ(on, off):
        found |= {"on": Switch(on), "off": Switch(off)}
    else:
        on = {}
    for name in (name for name in _WORDED if name in names):
        known = renderer.words(name, on)
        found |= {word: Switch({**on, name: word}) for word in _EFFORTS if word in known}
        for level, words in (("off", _OFF), ("on", _ON)):
            if level not in found and (word := next((word for word in words if word in known), "")):
                found[level] = Switch({name: word})
    if _BUDGET in names and "off" not in found and renderer.differ({_BUDGET: 0}, {}):
        found["off"] = Switch({_BUDGET: 0})
    if not found and template.words:
        found = renderer.by_word(template.words)
    if found and "on" not in found:  # "on" is the template's default, unless the default is not to reason
        efforts = [effort for effort in _COMMON_EFFORTS if effort in found]
        thinks = "off" not in found or renderer.of(found["off"]) != plain or not efforts
        found["on"] = Switch() if thinks else found[efforts[-1]]
    texts = {level: renderer.of(found[level]) for level in (*_EFFORTS, "on", "off") if level in found}
    default = next((level for level, text in texts.items() if text == plain), "")
    opens = left_open(plain) or left_open(texts.get("on") or "")
    return Reasoning({level: found[level] for level in LEVELS if level in found}, default, opens)


def keeps_thoughts(template: ChatTemplate, opening: str) -> bool:
    """Whether the template keeps the reasoning of earlier replies, opened by this mark, in the prompt."""
    reply = f"{opening}\n{_THOUGHT}\n{CLOSING[opening]}\n\nHello"
    text = _Renderer(template).text({}, (*_CHAT, {"role": "assistant", "content": reply}, *_CHAT))
    return text is not None and _THOUGHT in text


class _Renderer:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def text(self, variables: Mapping[str, object], chat: Sequence[Mapping[str, str]] = _CHAT) -> str | None:
        """The rendered text; None if the template refuses or fails."""
        try:
            return "".join(part.text for part in self._template.parts(chat, variables=variables))
        except SlipstreamError:
            return None

    def of(self, switch: Switch) -> str | None:
        chat = [{**_CHAT[0], "content": with_word(_CHAT[0]["content"], switch.word)}]
        return self.text(switch.variables, chat)

    def differ(self, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
        """Whether the template accepts both, and their texts differ."""
        first, second = self.text(one), self.text(other)
        return first is not None and second is not None and first != second

    def words(self, name: str, others: Mapping[str, object]) -> set[str]:
        """The known words that, as the value of a variable, give another text than an unknown word."""
        nonsense = self.text({**others, name: _NONSENSE})
        if nonsense is not None and _NONSENSE in nonsense:
            return {word for word in _COMMON_EFFORTS if self.text({**others, name: word}) is not None}
        texts = {word: self.text({**others, name: word}) for word in (*_EFFORTS, *_OFF, *_ON)}
        return {word for word, text in texts.items() if text is not None and text != nonsense}

    def by_word(self, words: Sequence[str]) -> dict[str, Switch]:
        """The levels that a word in the user's message selects: with the word, the rest of the text must change."""
        rest = {word: self._rest(word) for word in words}
        off = next((word for word in words if word != "/think" and rest[word] is not None), "")
        if not off or rest[off] == self._rest(""):
            return {}
        found = {"off": Switch(word=off)}
        return found | ({"on": Switch(word="/think")} if "/think" in words else {})

    def _rest(self, word: str) -> str | None:
        """The text for a message with a word, with the word and all spaces removed."""
        text = self.of(Switch(word=word))
        return None if text is None else "".join((text.replace(word, "") if word else text).split())


def with_word(text: str, word: str) -> str:
    return f"{text} {word}" if word else text
