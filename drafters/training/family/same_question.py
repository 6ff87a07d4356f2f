"""Finds prompts that ask the same as another one in other words: compares stems, without words that only ask."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_IRREGULAR = {
    "mice": "mouse", "leaves": "leaf", "feet": "foot", "children": "child", "men": "man", "women": "woman",
    "lost": "fall", "lose": "fall", "loses": "fall", "losing": "fall", "drop": "fall", "drops": "fall", "fell": "fall",
    "missing": "fall",
    "slept": "sleep", "asleep": "sleep", "flew": "fly", "flown": "fly", "flight": "fly", "bravery": "brave",
    "bedtime": "bed", "txt": "text", "directory": "folder", "directories": "folder",
    "tale": "story", "tales": "story", "fairytale": "story", "pc": "computer", "teeth": "tooth", "geese": "goose",
    "brought": "bring", "bought": "buy", "taught": "teach", "wrote": "write", "written": "write", "made": "make",
    "swam": "swim", "ate": "eat", "eaten": "eat", "grew": "grow", "grown": "grow", "knives": "knife", "wolves": "wolf",
}  # fmt: skip
"""Words that the spelling rules do not reduce to one stem, and words that mean the same in a question."""

_PHRASES = (
    (re.compile(r"\bin (?:the )?fall\b"), "in autumn"),
    (re.compile(r"\bgood ?night (?=story|tale)"), "bed "),
    (re.compile(r"\bfairy (?=tale)"), ""),
    (re.compile(r"\bwrite about\b"), "story about"),
    (re.compile(r"\bgood (?:morning|evening|night|day|afternoon)\b"), " "),
)

_SMALL_WORDS = """
a an the this that these those it its they them their there here he she his her him i me my mine we us our you your one
and or but so if then than as at by for from in into of off on onto out over to up down with without about along before
after within inside through between both all any every each some few many much more most other another such own same
is are am be being been was were do does did done doing have has had having can could will would shall should may might
must not no yes don doesn didn isn aren wasn won couldn shouldn wouldn let ll re ve
what which who whom whose when where why how whats hows come reason reasons because cause
tell say said speak talk explain describe define definition mean meaning means word words sentence sentences term name
list give show write make makes making made read know think see look find found hear want wanted wish wished like love
need help ask answer question request please kindly thank thanks hi hello hey ok okay well now just also too even very
really quite exactly only maybe perhaps actually simply simple simpler short brief briefly plain different difference
differ compare similar kind kinds sort type types example examples thing things item items something anything everything
somebody someone anybody anyone everybody everyone people person human humans man men one ones
way ways idea ideas tip tips fact facts able possible important work works working use used uses using useful get gets
getting go goes going went take takes taking bring brings put keep call called happen happens set old little small big
good best nice great new certain able learn learns up list lists command commands search searching rewrite rephrase
change turn note sound sounds phrase express enumerate mention suggest pick choose consider invent imagine continue
opinion purpose job task role usually usual often never always seen description describing detail details understand
cannot explanation easy easily belong belongs once upon time pair couple group object objects quickly
zero two three four five six seven eight nine ten eleven twelve dozen first second third last
year top
grandmother grandfather mother father class student child kid kids children son daughter
"""  # words that occur in many questions and tell little about the subject: function words, forms of asking, numbers

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_END = re.compile(r"[.?!;\n]+")
_STORY = "stori"


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A word without its endings; related words get the same stem, which need not be a word."""
    word = _IRREGULAR.get(word, word)
    if len(word) > 5 and word.endswith("ly"):
        word = word[:-2]
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) > 2 and re.search("[aeiouy]", base):
            doubled = base[-1] == base[-2] and base[-1] not in "lsfz"
            word = base[:-1] if doubled else base
            break
    if len(word) > 4:
        word = word.replace("our", "or")
    word = word.removesuffix("e") if len(word) > 3 else word
    return word[:-1] + "i" if len(word) > 2 and word.endswith("y") else word


_SMALL = frozenset(stem(word) for word in _SMALL_WORDS.split())


def key(text: str) -> frozenset[str]:
    """The stems of a prompt's subject; if it asks for a story, these are ``story`` and the story's subject."""
    text = text.lower().replace("\u2019", "'")
    for pattern, plain in _PHRASES:
        text = pattern.sub(plain, text)
    words = (word.partition("'")[0] for word in _WORD.findall(text))
    found = frozenset(stem(word) for word in words if not word.isdigit()) - _SMALL
    return found - {"sleep"} | {"bed"} if {_STORY, "sleep"} <= found else found


@dataclass(frozen=True)
class _Asked:
    prompt: str
    key: frozenset[str]

    def is_asked_by(self, other: frozenset[str]) -> bool:
        """Whether a prompt with the key ``other`` asks for nearly all of this one, and for little more."""
        subject = len(self.key - {_STORY})
        if (_STORY in other and _STORY not in self.key) or (_STORY in self.key and subject < 2 and _STORY not in other):
            return False  # a story about a bridge does not explain what a bridge is
        missing, more = len(self.key - other - {_STORY}), len(other - self.key)
        return (missing == 0 and more <= min(subject, 2)) or (missing == 1 and subject > 2 and more <= 1)


class SameQuestion:
    """Finds out whether a text asks one of some prompts.

    A text asks a prompt if the text or one of its sentences has all stems of the prompt, small words excluded, and few
    others: at most one if the prompt has one stem, else two. If it has three stems or more, one may be replaced.
    This also finds text that is only similar: training on less is better than training on what measures the model.
    """

    def __init__(self, prompts: Iterable[str]) -> None:
        """Args: prompts: each must have a word that is not small.

        Raises:
            ValueError: If a prompt has none.
        """
        self._asked = [_Asked(prompt, key(prompt)) for prompt in prompts]
        for asked in self._asked:
            if not asked.key:
                raise ValueError(f"no word of {asked.prompt!r} says what it asks")

    def find(self, text: str) -> str | None:
        """The first of the prompts that the text asks."""
        keys = list(_keys(text))
        return next((a.prompt for a in self._asked if any(a.is_asked_by(found) for found in keys)), None)


def _keys(text: str) -> Iterator[frozenset[str]]:
    """The key of the whole text, if it is not one sentence, then that of each sentence."""
    parts = [part for part in _END.split(text) if part.strip()]
    if len(parts) != 1:
        yield key(text)
    yield from map(key, parts)
