"""Text to train heads on, as the target's own ids: its own answers to prompts, a folder, or given chats."""

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import resources
from itertools import groupby
from pathlib import Path

import numpy as np

from slipstream.drafters.training.corpus import TrainingText
from slipstream.drafters.training.loop import Say
from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.chat_template.template import ChatTemplate, TemplatePart, after_bos, joined
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler

Prompt = tuple[list[int], Sampler]
Answer = tuple[list[int], list[int], int]  # prompt, reply, and the number of the conversation
Turns = Sequence[str]  # what the user says in one conversation
_ENDINGS = frozenset({".txt", ".md", ".rst", ".py", ".js", ".ts", ".c", ".h", ".cpp", ".java", ".go", ".rs", ".html"})
_MOST_BYTES = 4_000_000  # a larger file is assumed to be data, not text
_REPLY = 256  # tokens of the longest answer
_SIDE_BY_SIDE = 16  # answers in one pass
_N_CTX = 1024  # most tokens of a conversation
_WARM = 0.8  # temperature of most answers
_GREEDY = 4  # one conversation in this many is greedy
_ASKED_ON = 3  # one answer in this many to a prompt from templates is asked about in a second turn
_CYCLE, _REPEATED = 32, 48  # a reply that repeats a cycle of up to so many tokens for so many teaches nothing more
_MOST_PROMPTS = 64 << 20  # bytes of a file of prompts
_MORE = ("Why?", "Give me an example.", "Make it shorter.", "Can you explain that in more detail?", "What comes next?")


class ChatIds:
    """Turns messages into ids and loss weights by the target's own chat template."""

    def __init__(self, model: LlamaModel) -> None:
        self._template = ChatTemplate.of(model.header.chat_template, *model.special_names(), model.header.tokens)
        self._model, self._bos = model, self._template.bos if model.opening() else ""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[float]]:
        """Ids and weights of a chat: 1 for the assistant's text and the token that ends it, 0 for the rest."""
        ids, weights = self._model.opening(), [0.0] * len(self._model.opening())
        said = False
        parts = after_bos(self._template.complete_parts(messages, {"add_generation_prompt": False}), self._bos)
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
        return self._model.opening() + self._tokens(after_bos(self._template.complete_parts(messages), self._bos))

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


def read_prompts(path: Path) -> list[list[str]]:
    """The conversations of a file of prompts.

    A line is a question; or JSON: a string, a list of what the user says turn by turn, or an object with ``turns``.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_PROMPTS + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.", "Give a file with one prompt a line.") from error
    if len(text) > _MOST_PROMPTS:
        raise UsageError(f"{path} is larger than {_MOST_PROMPTS >> 20} MB.", "Split it.")
    found = [_turns(line) for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    if not any(found):
        raise UsageError(f"{path} holds no prompt.", "Write one question a line.")
    return [turns for turns in found if turns]


def _turns(line: str) -> list[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = line
    if isinstance(value, dict):
        value = value.get("turns")
    said = value if isinstance(value, list) else [value]
    return [turn.strip() for turn in said if isinstance(turn, str) and turn.strip()]


def made_answers(
    model: LlamaModel,
    options: ContextOptions,
    tokens: int,
    path: Path,
    seed: int,
    say: Say,
    prompts: Sequence[Turns] = (),
) -> TrainingText:
    """Generates the target's answers to prompts until they have ``tokens`` tokens.

    Finished answers are appended to a file, and a run that was killed resumes with the next conversation.

    Args:
        path: the file, one JSON list a line.
        prompts: what is asked, in shuffled rounds; empty for prompts from templates.
    """
    kept = _kept(path, tokens)
    made = said = _written(kept)
    if made >= tokens:
        return _answered(kept)
    asked = _Conversations(ChatIds(model), model, prompts or _templates(), seed, kept)
    try:
        with (
            path.open("a", encoding="utf-8", buffering=1) as file,  # a kill loses unfinished answers alone
            closing(ManyReplies(model, _SIDE_BY_SIDE, _N_CTX, options)) as replies,
        ):
            for found, reply in replies.replies(asked, _REPLY):
                answer = asked.answered(list(found), reply)
                file.write(json.dumps(answer) + "\n")
                kept.append(answer)
                made += len(reply)
                if made - said >= tokens / 50:
                    said = made
                    say(f"own answers: {made:,} of {tokens:,} tokens")
                if made >= tokens:
                    break
    except OSError as error:
        raise SlipstreamError(f"cannot write {path}: {error.strerror}.", "Make room, then start again.") from error
    return _answered(kept)


def answered_tokens(path: Path) -> int:
    """Tokens of the finished answers in a file."""
    return _written(_kept(path)) if path.exists() else 0


class _Conversations:
    """Yields the prompts of conversations, in shuffled rounds without end; a next turn when its reply has come in."""

    def __init__(
        self, ids: ChatIds, model: LlamaModel, asked: Sequence[Turns], seed: int, kept: Sequence[Answer]
    ) -> None:
        """Args: kept: finished answers of an earlier run; their conversations do not begin again."""
        self._ids, self._model, self._asked, self._seed = ids, model, asked, seed
        self._number = 1 + max((number for _, _, number in kept), default=-1)
        self._open = defaultdict[tuple[int, ...], list[tuple[int, int]]](list)  # number and turn, by open prompt
        self._following: list[Prompt] = []

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        if self._following:
            return self._following.pop()
        number = self._number
        self._number += 1
        return self._prompt(self._ids.prompt([{"role": "user", "content": self._turns(number)[0]}]), number, 0)

    def answered(self, prompt: list[int], reply: list[int]) -> Answer:
        """Takes in a reply, and asks on if the user says more."""
        number, turn = self._open[tuple(prompt)].pop()
        turns = self._turns(number)
        if turn + 1 < len(turns) and reply[-1] in self._model.ends:
            answer = self._model.pieces(reply[:-1]).decode("utf-8", "replace")
            messages = [
                {"role": "user", "content": turns[turn]},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": turns[turn + 1]},
            ]
            self._following.append(self._prompt(self._ids.follow_up(messages, prompt, reply), number, turn + 1))
        return prompt, reply, number

    def _turns(self, number: int) -> Turns:
        epoch, place = divmod(number, len(self._asked))
        return self._asked[int(np.random.default_rng([self._seed, epoch]).permutation(len(self._asked))[place])]

    def _prompt(self, ids: list[int], number: int, turn: int) -> Prompt:
        self._open[tuple(ids)].append((number, turn))
        greedy = number % _GREEDY == 0
        return ids, Sampler(temperature=0) if greedy else Sampler(temperature=_WARM, seed=self._seed + number)


def _answered(kept: list[Answer]) -> TrainingText:
    return TrainingText.of((prompt + reply, [0.0] * len(prompt) + _weights(reply)) for prompt, reply, _ in kept)


def _weights(reply: Sequence[int]) -> list[float]:
    """1 for each token of a reply, 0 from where it has repeated itself for a while."""
    ids = np.asarray(reply)
    for cycle in range(1, min(_CYCLE, len(ids) - 1) + 1):
        runs = np.cumsum(np.append(0, ids[cycle:] == ids[:-cycle]))
        repeated = np.flatnonzero(runs[_REPEATED:] - runs[:-_REPEATED] == _REPEATED)
        if len(repeated):
            ids = ids[: cycle + _REPEATED + int(repeated[0])]
    return [1.0] * len(ids) + [0.0] * (len(reply) - len(ids))


def _written(kept: Sequence[Answer]) -> int:
    return sum(len(reply) for _, reply, _ in kept)


def _kept(path: Path, most: int | None = None) -> list[Answer]:
    replies: list[Answer] = []
    if path.exists():
        whole = path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        path.write_bytes(whole)  # removes a line that a kill cut short
        made = 0
        for prompt, reply, number in map(json.loads, whole.splitlines()):
            if most is not None and made >= most:
                break
            replies.append((prompt, reply, number))
            made += len(reply)
    return replies


def _templates() -> list[list[str]]:
    return [
        [text, _MORE[place // _ASKED_ON % len(_MORE)]] if place % _ASKED_ON == 0 else [text]
        for place, text in enumerate(made_prompts())
    ]


def made_prompts() -> list[str]:
    kinds = tomllib.loads(resources.files("slipstream.drafters.training").joinpath("prompts.toml").read_text())
    filled = [
        form.format(subject) for kind in kinds["prompts"] for subject in kind["subjects"] for form in kind["forms"]
    ]
    sums = [
        f"A shop sells {a} apples for {b} coins each and {c} pears for {a} coins each. How many coins does it take in?"
        for a in range(3, 9)
        for b in (2, 5, 7)
        for c in (4, 6, 10)
    ]
    return [*filled, *sums]
