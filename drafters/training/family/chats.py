"""Turns rows into chats: definitions, stories and shell commands become questions with answers."""

import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from slipstream.drafters.training.family import (
    identity,
    lists,
    meanings,
    reasons,
    skills,
    tales,
    things,
)
from slipstream.drafters.training.family.same_question import SameQuestion
from slipstream.drafters.training.family.sources import Message, Row, pairs_as_chats

Chat = list[Message]  # messages in order; running text is a single message of role ``text``

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer in short, plain English.",
    "Answer briefly.",
    "You are Slipstream, a small model that runs on the user's own machine.",
)
_COMMON_COMMANDS = """
ls cd cp mv rm mkdir rmdir touch cat less head tail grep sed awk find sort uniq wc cut tr xargs echo pwd chmod chown
df du ps top kill tar zip unzip gzip ssh scp rsync curl wget ping git make diff man date which history alias nano vim
python pip apt brew docker systemctl mount ln file stat tee jq ffmpeg crontab uname whoami passwd sudo env
"""
_COMMON = frozenset(_COMMON_COMMANDS.split())
_DULL_WORDS = """
that this they them then there their with from have were what when where said will would could about into your some very
just like back down over again went came asked been more know only after before because
"""
_DULL = frozenset(_DULL_WORDS.split())
_BRACKET = re.compile(r"^\([^)]*\) ")
_WORD = re.compile(r"[a-z]{4,}")
_JOINED = frozenset(
    {"gpteacher", "rasbt_instruct", "self_instruct_human", "simple_dictionary", "tldr", "identity", "everyday", "lists"}
    | {"meanings", "reasons", "skills", "things"}
    | {f"plain_{part}" for part in ("stories_a", "stories_b", "words", "explain", "tasks", "because", "how", "means")}
)
_FREQUENT = 8  # a word of the dictionary is kept for training if at least this many other rows use it
_JOIN_SHARE = 0.15
_SYSTEM_SHARE = 0.06


def build(
    rows: list[Row], seed: int, barred: SameQuestion | None = None, by_heart: bool = True
) -> tuple[dict[str, list[Chat]], Counter[str]]:
    """Makes the chats of one split, by source, in a fixed order for a seed.

    Args:
        seed: chooses wordings, system prompts and which chats are joined into longer ones.
        barred: finds questions that no training chat may ask; None for held-out text.
        by_heart: whether to add chats to learn by heart to the training text; they are never held out.

    Returns:
        The chats, and how many of each source were left out because of ``barred``.
    """
    rng = random.Random(seed)
    train = barred is not None
    counts = Counter(word for row in rows if row.source != "simple_dictionary" for word in set(row.words()))
    floor = _FREQUENT if train else 0
    made: dict[str, list[Chat]] = {}
    for row in rows:
        if row.source == "simple_dictionary" and counts[_defined(row)] < floor:
            continue
        make = _MAKERS.get(row.source, _as_it_is)
        made.setdefault(row.source, []).extend(make(row, rng))
    if train and by_heart:
        for name, make_chats in _BY_HEART.items():
            made[name] = make_chats(seed)
    left_out = Counter[str]()
    if barred:
        for source, chats in made.items():
            made[source] = [chat for chat in chats if not _asks(chat, barred)]
            left_out[source] = len(chats) - len(made[source])
    return {source: _vary(source, chats, rng) for source, chats in sorted(made.items())}, left_out


def _asks(chat: Chat, barred: SameQuestion) -> bool:
    return any(message["role"] == "user" and barred.find(message["content"]) for message in chat)


def _vary(source: str, chats: list[Chat], rng: random.Random) -> list[Chat]:
    """Joins some short chats into longer ones and puts a system prompt before some."""
    rng.shuffle(chats)
    varied: list[Chat] = []
    for chat in chats:
        if source in _JOINED and varied and len(varied[-1]) <= 4 and rng.random() < _JOIN_SHARE:
            varied[-1] = varied[-1] + chat
        else:
            varied.append(list(chat))
    for chat in varied:
        if chat[0]["role"] == "user" and rng.random() < _SYSTEM_SHARE:
            chat.insert(0, Message(role="system", content=rng.choice(_SYSTEM)))
    return varied


def _pair(question: str, answer: str) -> Chat:
    return [Message(role="user", content=question.strip()), Message(role="assistant", content=answer.strip())]


def _as_it_is(row: Row, rng: random.Random) -> list[Chat]:
    if row.text:
        return [[Message(role="text", content=row.text)]]
    turns = list(row.messages)
    while turns and turns[-1]["role"] != "assistant":
        turns.pop()
    return [turns] if len(turns) > 1 else []


def _story(row: Row, rng: random.Random) -> list[Chat]:
    title, _, body = row.text.partition("\n\n")
    body = body.strip()
    if not body or len(title) > 80:
        return [[Message(role="text", content=row.text)]]
    frequent = [word for word, _ in Counter(_WORD.findall(body.lower())).most_common(40) if word not in _DULL][:3]
    asks = [f"Tell me a story about {_lower_first(title)}.", f'Write a short story called "{title}".']
    asks += [f"Tell me a story about {frequent[i]}." for i in range(len(frequent))]
    asks += ["Tell me a story.", "tell me a story", "Can you tell me a short story?", "Write a story for children."]
    return [_pair(ask, body) for ask in rng.sample(asks, 3)]


def _defined(row: Row) -> str:
    match = re.match(r'What does "(.+)" mean\?', row.messages[0]["content"])
    return match.group(1) if match else ""


def _definition(row: Row, rng: random.Random) -> list[Chat]:
    word = _defined(row)
    senses = re.findall(r"\((noun|verb|adjective|adverb)\) ([^;]+(?:; (?!\()[^;]+)*)", row.messages[1]["content"])
    if not word or not senses or not word.isascii():
        return []
    kind, meaning = senses[0]
    gloss, _, example = meaning.rstrip(".").partition(', as in "')
    gloss = _BRACKET.sub("", gloss)
    article = "an" if word[0] in "aeiou" else "a"
    if kind == "noun" and re.match(r"an? ", gloss):
        answer = f"{article.capitalize()} {word} is {gloss}."
        asks = [f"What is {article} {word}?", f"Tell me about {article} {word}.", f"Tell me about the {word}."]
    elif kind == "noun":
        answer = f"{word.capitalize()} is {gloss}."
        asks = [f"What is {word}?", f"Tell me about {word}.", f"Tell me about the {word}."]
    elif kind == "verb":
        answer = f"To {word} is to {gloss.removeprefix('to ')}."
        asks = [f"What does it mean to {word}?"]
    else:
        answer = f'"{word.capitalize()}" means {gloss}.'
        asks = [f"What is the meaning of {word}?"]
    if example:
        answer += f' For example: "{example.rstrip(chr(34))}".'
    if len(senses) > 1:
        other = _BRACKET.sub("", senses[1][1].rstrip(".").partition(", as in ")[0])
        answer += f" It can also mean {other}."
    asks += [f'What does "{word}" mean?', f"What does {word} mean?", f"Define {word}.", f"Explain the word {word}."]
    return [_pair(ask, answer) for ask in rng.sample(asks, 2)]


def _commands(row: Row, rng: random.Random) -> list[Chat]:
    name = row.text.partition("\n")[0].lstrip("# ").strip()
    about = re.search(r"^> (.+?)\.?$", row.text, re.MULTILINE)
    made: list[Chat] = []
    if about:
        what = re.sub(r"[\[\]]", "", about.group(1))
        ask = rng.choice((f"What does `{name}` do?", f"What is the {name} command?", f"What does {name} do?"))
        made.append(_pair(ask, f"`{name}`: {_lower_first(what)}."))
    for task, command in re.findall(r"^- (.+?):\n\n`(.+)`$", row.text, re.MULTILINE):
        task = _lower_first(re.sub(r"[\[\]]", "", task))
        command = re.sub(r"\{\{\[[^\]|]*\|([^\]]*)\]\}\}", r"\1", command)
        command = command.replace("{{", "").replace("}}", "")
        asks = (f"How do I {task}?", f"How do I {task} with {name}?", f"Which command can I use to {task}?")
        answer = rng.choice(("Use this command:\n\n`{}`", "You can use `{}`."))
        made.append(_pair(rng.choice(asks), answer.format(command)))
    return made * 6 if name.split()[0] in _COMMON else made[:2]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


_EVERYDAY = Path(__file__).with_name("everyday.toml")
_EVERYDAY_ASKS = (
    "Tell me about {}.", "Tell me about {}", "tell me about {}", "What can you tell me about {}?",
    "What do you know about {}?", "Describe {}.", "Can you tell me about {}?", "Tell me something about {}.",
    "Explain {}.", "Write about {}.",
)  # fmt: skip


def everyday(seed: int) -> list[list[Message]]:
    """Hand-written short answers to the first questions that people try.

    Each subject comes in several wordings; each other question comes as written, in lower case and after a greeting.
    """
    rng = random.Random(seed)
    text = tomllib.loads(_EVERYDAY.read_text(encoding="utf-8"))
    pairs: list[tuple[str, str]] = []
    for thing, answer in text["about"].items():
        pairs += [(ask.format(thing), answer) for ask in (*_EVERYDAY_ASKS[:2], *rng.sample(_EVERYDAY_ASKS[2:], 5))]
        pairs.append((f"What {'are' if thing.endswith('s') else 'is'} {thing}?", answer))
    for country, capital in text["capitals"].items():
        answer = f"The capital of {country} is {capital}."
        pairs += [(f"What is the capital of {country}?", answer), (f"Which city is the capital of {country}?", answer)]
    for ask, answer in text["answers"].items():
        pairs += [(ask, answer), (ask[0].lower() + ask[1:].rstrip(".?"), answer), (f"Hi! {ask}", answer)]
    return pairs_as_chats(pairs)


_BY_HEART: dict[str, Callable[[int], list[Chat]]] = {
    "identity": identity.chats,
    "everyday": everyday,
    "lists": lists.chats,
    "tales": tales.chats,
    "meanings": meanings.chats,
    "reasons": reasons.chats,
    "things": things.chats,
    "skills": skills.chats,
}
_MAKERS: dict[str, Callable[[Row, random.Random], list[Chat]]] = {
    "simple_dictionary": _definition,
    "tldr": _commands,
    "african_storybook": _story,
    "pratham_books": _story,
}
