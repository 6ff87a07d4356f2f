"""Text to train heads on, as the target's own ids: its own answers, a folder, or given chats."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

import numpy as np

from slipstream.drafters.training.corpus import TrainingText
from slipstream.drafters.training.loop import Say
from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.chat_template.template import ChatTemplate, TemplatePart, joined
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler

Prompt = tuple[list[int], Sampler]
Answer = tuple[list[int], list[int]]  # prompt and reply

_ENDINGS = frozenset({".txt", ".md", ".rst", ".py", ".js", ".ts", ".c", ".h", ".cpp", ".java", ".go", ".rs", ".html"})
_MOST_BYTES = 4_000_000  # a larger file is assumed to be data, not text
_REPLY = 128  # tokens of the longest answer
_SIDE_BY_SIDE = 16  # answers in one pass
_N_CTX = 512  # most tokens of a prompt with its reply
_WARM = 0.8  # temperature of every other answer; the rest are greedy
_ASKED_ON = 3  # one answer in this many is asked about in a second turn

_TOPICS = """
sleep; tides; photosynthesis;
the water cycle; how a bill becomes law; the causes of inflation; black holes; plate tectonics; vaccines;
the French Revolution; supply and demand; how engines work; the immune system; electric cars; how the internet works;
solar power; the history of printing; coral reefs; how bread rises; jazz; the rules of chess; volcanoes;
how planes fly; compound interest; earthquakes; cheese; the Silk Road; how batteries store energy; migrating birds;
the Roman roads; glaciers; recycling; how cameras work; the stock market; medieval castles; bees; the metric system;
public libraries; how memory works; rockets; deserts; the invention of the telephone; urban gardens; how locks work
"""
_ABOUT = (
    "Explain {}.",
    "Explain {} to a child.",
    "Write a short paragraph about {}.",
    "What are three common mistakes people make when they talk about {}?",
    "Give me a list of five facts about {}.",
    "Write a dialogue between a teacher and a student about {}.",
    "Summarize what an expert would say about {}, in three steps.",
)
_PROGRAMS = """
reverses a string;
counts the words in a file; finds the largest number in a list; checks whether a word is a palindrome;
computes Fibonacci numbers; sorts names by length; removes duplicates from a list; converts Celsius to Fahrenheit;
reads a CSV file and sums a column; finds all prime numbers below 100; merges two sorted lists; counts vowels;
parses a date; computes the mean and the median; checks balanced brackets; groups words by their first letter;
downloads a page and counts its links; renames all files in a folder; keeps the last ten lines of a log
"""
_CODE = (
    "Write a Python function that {}.",
    "Write a JavaScript function that {}.",
    "Write a C function that {}, and explain each line.",
    "Write a shell script that {}.",
    "Write a unit test for a function that {}.",
)
_TASKS = """
a birthday party; a week of lunches; moving to a new flat; a job interview; learning a language; a hiking trip;
a small garden; a school play; a family budget; a day at the sea; a move to another city; a website for a baker
"""
_PLANS = (
    "Make a checklist for {}.",
    "Write an email that asks a friend for help with {}.",
    "Plan {} step by step.",
    "What should I know before I start with {}?",
    "Write a short story about {}.",
    "Write a poem about {}.",
)
_MORE = ("Why?", "Give me an example.", "Make it shorter.", "Can you explain that in more detail?", "What comes next?")


class ChatIds:
    """Turns messages into ids and loss weights by the target's own chat template."""

    def __init__(self, model: LlamaModel) -> None:
        self._template = ChatTemplate.of(model.header.chat_template, *model.special_names(), model.header.tokens)
        self._model = model

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[float]]:
        """Ids and weights of a chat: 1 for the assistant's text and the token that ends it, 0 for the rest."""
        ids, weights = self._model.opening(), [0.0] * len(self._model.opening())
        said = False
        parts = self._template.complete_parts(messages, add_generation_prompt=False)
        for of_reply, run in groupby(parts, lambda part: self._is_reply(part, messages)):
            tokens = self._tokens(run, joins=said or of_reply)
            ending = said and bool(tokens) and tokens[0] in self._model.ends
            said = of_reply
            ids += tokens
            weights += [1.0 if said else 0.0] * len(tokens)
            if ending:
                weights[-len(tokens)] = 1.0
        return ids, weights

    def follow_up(self, messages: Sequence[Mapping[str, str]], prompt: list[int], reply: list[int]) -> list[int]:
        """Ids up to the next reply, of a chat whose last two messages are a reply and the question after it.

        Args:
            prompt: ids up to the earlier reply.
            reply: ids of the earlier reply with the token that ends it; both are kept as they are.
        """
        parts = self._template.complete_parts(messages)
        last = max((i for i, part in enumerate(parts) if part.content == len(messages) - 2), default=-1)
        rest = self._tokens(parts[last + 1 :], joins=True)
        return prompt + reply + rest[bool(rest) and rest[0] == reply[-1] :]

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a chat up to where the reply begins."""
        return self._model.opening() + self._tokens(self._template.complete_parts(messages))

    def _tokens(self, parts: Iterable[TemplatePart], joins: bool = False) -> list[int]:
        text, written = joined(parts)
        return self._model.tokenize(text, True, written, joins=joins)

    @staticmethod
    def _is_reply(part: TemplatePart, messages: Sequence[Mapping[str, str]]) -> bool:
        return part.content is not None and messages[part.content]["role"] == "assistant"


def folder(path: Path, model: LlamaModel, window: int) -> TrainingText:
    """All text files below a folder, cut into pieces as long as a window."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder.", "Give the folder that holds the text files.")
    chats: list[tuple[list[int], list[float]]] = []
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() in _ENDINGS and file.is_file() and file.stat().st_size <= _MOST_BYTES:
            ids = model.tokenize(file.read_text(encoding="utf-8", errors="replace"), False)
            pieces = [ids[at : at + window] for at in range(0, len(ids), window)]
            chats += [
                ([*model.opening(), *piece], [0.0] * len(model.opening()) + [1.0] * len(piece)) for piece in pieces
            ]
    if sum(len(ids) for ids, _ in chats) < 2 * window:
        raise UsageError(f"{path} holds too little text to train on.", f"Known kinds: {' '.join(sorted(_ENDINGS))}.")
    return TrainingText.of(chats)


def made_answers(
    model: LlamaModel, options: ContextOptions, tokens: int, path: Path, seed: int, say: Say
) -> TrainingText:
    """Generates the target's answers to prompts from templates until they have ``tokens`` tokens.

    Every other answer is greedy, and a third of the prompts get a second turn. Finished answers are appended to a file;
    a run that was killed resumes with the next prompt.

    Args:
        path: the file, one JSON object a line.
    """
    kept = _kept(path)
    made = said = sum(len(reply) for _, reply in kept)
    prompts = _OwnPrompts(ChatIds(model), model, seed)
    prompts.skip(len(kept))
    if made >= tokens:
        return _answered(kept)
    try:
        with (
            path.open("a", encoding="utf-8") as file,
            closing(ManyReplies(model, _SIDE_BY_SIDE, _N_CTX, options)) as replies,
        ):
            for found, reply in replies.replies(prompts, _REPLY):
                prompt = list(found)
                file.write(json.dumps([prompt, reply]) + "\n")
                kept.append((prompt, reply))
                prompts.answered(prompt, reply)
                made += len(reply)
                if made - said >= tokens / 50:
                    said = made
                    file.flush()
                    say(f"own answers: {made:,} of {tokens:,} tokens")
                if made >= tokens:
                    break
    except OSError as error:
        raise SlipstreamError(f"cannot write {path}: {error.strerror}.", "Make room, then start again.") from error
    return _answered(kept)


class _OwnPrompts:
    """Yields prompts from templates, in shuffled rounds without end, and second turns as their answers come in."""

    def __init__(self, ids: ChatIds, model: LlamaModel, seed: int) -> None:
        self._ids, self._model, self._seed = ids, model, seed
        self._asked = made_prompts()
        self._number = 0
        self._first: dict[tuple[int, ...], tuple[int, str]] = {}  # number and text of open first questions, by prompt
        self._second: list[Prompt] = []

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        if self._second:
            return self._second.pop()
        epoch, place = divmod(self._number, len(self._asked))
        text = self._asked[int(np.random.default_rng([self._seed, epoch]).permutation(len(self._asked))[place])]
        prompt = self._ids.prompt([{"role": "user", "content": text}])
        self._first[tuple(prompt)] = self._number, text
        self._number += 1
        return prompt, self._sampler(self._number)

    def skip(self, count: int) -> None:
        self._number += count

    def answered(self, prompt: list[int], reply: list[int]) -> None:
        """Asks on after one whole answer in three."""
        number, text = self._first.pop(tuple(prompt), (1, ""))
        if number % _ASKED_ON or reply[-1] not in self._model.ends:
            return
        answer = self._model.pieces(reply[:-1]).decode("utf-8", "replace")
        messages = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": _MORE[number // _ASKED_ON % len(_MORE)]},
        ]
        self._second.append((self._ids.follow_up(messages, prompt, reply), self._sampler(number // _ASKED_ON)))

    def _sampler(self, number: int) -> Sampler:
        return Sampler(temperature=_WARM, seed=self._seed + number) if number % 2 else Sampler(temperature=0)


def _answered(kept: list[Answer]) -> TrainingText:
    return TrainingText.of((prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply)) for prompt, reply in kept)


def _kept(path: Path) -> list[Answer]:
    replies: list[Answer] = []
    if path.exists():
        whole = path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        path.write_bytes(whole)  # removes a line that a kill cut short
        replies = [(prompt, reply) for prompt, reply in map(json.loads, whole.splitlines())]
    return replies


def made_prompts() -> list[str]:
    """All prompts of the templates, in a fixed order."""
    filled = [
        form.format(" ".join(subject.split()))
        for forms, subjects in ((_ABOUT, _TOPICS), (_CODE, _PROGRAMS), (_PLANS, _TASKS))
        for subject in subjects.split(";")
        for form in forms
    ]
    sums = [
        f"A shop sells {a} apples for {b} coins each and {c} pears for {a} coins each. How many coins does it take in?"
        for a in range(3, 9)
        for b in (2, 5, 7)
        for c in (4, 6, 10)
    ]
    return [*filled, *sums]
