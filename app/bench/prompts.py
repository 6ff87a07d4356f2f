"""The kinds of text that parts ``drafters`` and ``check`` write: built-in prompts, or those of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from slipstream.app.bench.conversations import Prompt
from slipstream.app.bench.prompt_files import read_prompts
from slipstream.app.safe_text import one_line
from slipstream.models.errors import UsageError

BUILT_IN: Final = ("chat", "story", "copy")
"""Sets that ship with slipstream: small talk, free stories, and texts and code that are to be written out changed."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind of text.

    Attributes:
        name: What tables call it.
        prompts: The prompts.
    """

    name: str
    prompts: tuple[Prompt, ...]


def prompt_sets(names: Sequence[str], limit: int, by_category: bool = False) -> tuple[PromptSet, ...]:
    """Reads sets of prompts.

    Args:
        names: Names of built-in sets, and paths of files; all built-in sets where there are none.
        limit: Prompts of each set, chosen evenly from its first to its last; 0 for all.
        by_category: Whether each category of a file is a set of its own, as in Spec-Bench.

    Returns:
        A set each; that of a file is named by its folder and name, such as "gsm8k/test", and by its category.

    Raises:
        UsageError: If a file has no prompts or is none of prompts, or a set is given twice.
        SlipstreamError: If one cannot be read.
    """
    if limit < 0:
        raise UsageError(f"limit is {limit}; it must be 0 (all prompts) or more.")
    paths = [_path(name) for name in names or BUILT_IN]
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UsageError(f"{path} is given {times} times.", "Give each set of prompts once.")
    short = Counter(map(_short_name, paths))
    sets = list[PromptSet]()
    for path in paths:
        name, prompts = _short_name(path) if short[_short_name(path)] == 1 else str(path), read_prompts(path)
        for category in dict.fromkeys(prompt.category for prompt in prompts) if by_category else [None]:
            kept = [prompt for prompt in prompts if category in (None, prompt.category)]
            sets.append(PromptSet(one_line(f"{name} {category}" if category else name), evenly(kept, limit)))
    return tuple(sets)


def evenly(prompts: Sequence[Prompt], limit: int) -> tuple[Prompt, ...]:
    """Takes ``limit`` of the prompts at equal distances; all where it is 0 or there are no more."""
    count = min(limit or len(prompts), len(prompts))
    return tuple(prompts[at * len(prompts) // count] for at in range(count))


def _path(name: str) -> Path:
    return _built_in(name) if name in BUILT_IN else Path(name).expanduser()


def _built_in(name: str) -> Path:
    return Path(str(resources.files("slipstream.app.bench"))) / "sets" / f"{name}.jsonl"


def _short_name(path: Path) -> str:
    stem = path.name.split(".", 1)[0] or path.name
    if path == _built_in(stem):
        return stem
    return f"{path.parent.name}/{stem}" if path.parent.name else stem
