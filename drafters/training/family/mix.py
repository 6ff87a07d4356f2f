"""The family's training mix: the share of each source, the encoded corpus on disk, and prompts drawn from it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from slipstream.drafters.training.corpus import Source
from slipstream.drafters.training.family.chats import Chat
from slipstream.drafters.training.family.tokenizer import START_ID, ChatEncoder
from slipstream.drafters.training.texts import Prompts, as_source, sampler
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import repeats

_PARTS = ("ids", "weights", "offsets")
_PROMPT = 192  # ids of the longest prompt

# shares of the training tokens by source; ``answers`` are the target's own, about half of the tokens if they exist
SHARES = {
    "gpteacher": 0.06,
    "synthetic_persona_chat": 0.03,
    "simple_dictionary": 0.03,
    "pratham_books": 0.012,
    "fairytaleqa_stories": 0.02,
    "tldr": 0.06,
    "african_storybook": 0.015,
    "fairytaleqa_qa": 0.03,
    "sgd": 0.06,
    "rasbt_instruct": 0.012,
    "open_trivia_qa": 0.015,
    "gsm8k_train": 0.02,
    "taskmaster": 0.01,
    "self_instruct_human": 0.005,
    "chatterbot_corpus": 0.004,
    "everyday": 0.015,
    "identity": 0.015,
    "lists": 0.12,
    "tales": 0.22,
    "meanings": 0.1,
    "reasons": 0.07,
    "things": 0.12,
    "skills": 0.03,
    "plain_stories_a": 0.025,
    "plain_stories_b": 0.025,
    "plain_stories_c": 0.025,
    "plain_tales": 0.075,
    "plain_words": 0.025,
    "plain_wordsmore": 0.025,
    "plain_means": 0.05,
    "plain_facts": 0.025,
    "plain_explain": 0.02,
    "plain_explainmore": 0.025,
    "plain_why": 0.03,
    "plain_because": 0.05,
    "plain_how": 0.05,
    "plain_tasks": 0.025,
    "plain_tasksmore": 0.025,
    "plain_doing": 0.025,
    "plain_talk": 0.025,
    "plain_talkmore": 0.025,
    "plain_mixed": 0.02,
    "plain_basics": 0.02,
    "plain_nature": 0.05,
    "plain_made": 0.05,
    "plain_listing": 0.05,
    "plain_shorttales_a": 0.05,
    "answers": 1.0,
    "loops": 0.3,
}


def encode(made: dict[str, list[Chat]], encoder: ChatEncoder) -> dict[str, Source]:
    """Encodes the chats of one split."""
    sources: dict[str, Source] = {}
    for name, chats in made.items():
        pairs = [encoder.encode(chat) for chat in chats]
        offsets = np.cumsum([0] + [len(ids) for ids, _ in pairs])
        ids = np.fromiter((i for ids, _ in pairs for i in ids), np.uint16)
        weights = np.fromiter((w for _, ws in pairs for w in ws), np.float32)
        sources[name] = Source(ids, weights, offsets.astype(np.int64))
    return sources


def save(path: Path, train: dict[str, Source], held_out: dict[str, Source]) -> None:
    """Writes both splits to one ``.npz``."""
    arrays = {
        f"{split}/{name}/{part}": getattr(source, part)
        for split, sources in (("train", train), ("held_out", held_out))
        for name, source in sources.items()
        for part in _PARTS
    }
    np.savez(path, **arrays)


def load(path: Path, split: str) -> dict[str, Source]:
    """Reads one split, ``train`` or ``held_out``."""
    with np.load(path) as stored:
        names = sorted({key.split("/")[1] for key in stored.files if key.startswith(split + "/")})
        return {name: shared(Source(*(stored[f"{split}/{name}/{part}"] for part in _PARTS)), name) for name in names}


def shared(source: Source, name: str) -> Source:
    """Sets a source's share of the mix, and allows its chats to be joined."""
    return replace(source, share=SHARES.get(name, source.share), opening=START_ID)


def prompts_of(sources: Mapping[str, Source], seed: int, alike: bool = False) -> Prompts:
    """Yields prompts without end: beginnings of chats up to the start of a reply, of at most ``_PROMPT`` ids.

    Args:
        alike: whether all sources are drawn equally often, instead of by their shares.
    """
    rng = np.random.default_rng(seed)
    names = [name for name in sorted(sources) if SHARES.get(name)]
    shares = np.array([1.0 if alike else SHARES[name] for name in names])
    number = 0
    while True:
        source = sources[names[int(rng.choice(len(names), p=shares / shares.sum()))]]
        item = int(rng.integers(0, len(source.offsets) - 1))
        start, stop = int(source.offsets[item]), int(source.offsets[item + 1])
        written = source.weights[start:stop] >= 1
        begins = np.flatnonzero(written[1:] & ~written[:-1]) + 1
        begins = begins[(begins > 0) & (begins <= _PROMPT)]
        if len(begins):
            number += 1
            yield source.ids[start : start + int(rng.choice(begins))].tolist(), sampler(number, seed + number)


def against_repetition(answers: Source) -> Source:
    """Selects the model's replies that repeat themselves, with weights that make the repetitions less likely.

    An id that completes a run of four ids which occurred earlier in the reply weighs -1, all others 0.
    """
    found = []
    for start, stop in pairwise(answers.offsets.tolist()):
        ids, said = answers.ids[start:stop].tolist(), answers.weights[start:stop] > 0
        begin = int(np.argmax(said))
        ends = repeats(ids[begin:])
        if ends:
            weights = [0.0] * len(ids)
            for end in ends:
                weights[begin + end] = -1.0
            found.append((ids, weights))
    return as_source(found)


def greedy(prompts: Prompts) -> Prompts:
    """The same prompts, with greedy decoding."""
    for prompt, _ in prompts:
        yield prompt, Sampler(temperature=0)
