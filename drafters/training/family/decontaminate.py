"""Finds training text that overlaps benchmarks, so that results on them do not measure memorized text."""

import gzip
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from slipstream.drafters.training.family.sources import Row
from slipstream.models.errors import UsageError

RUN_WORDS = 10  # a row that shares a run of this many words with a benchmark overlaps it
_OPENERS: dict[str, Callable[..., TextIO]] = {".jsonl": open, ".xz": lzma.open, ".gz": gzip.open}
_WORD = re.compile(r"\w+")


@dataclass
class Overlaps:
    """The overlaps that were found."""

    rows: Counter[str] = field(default_factory=Counter)  # rows looked at, by source
    # rows that overlap a benchmark, by source and benchmark
    shared: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)  # the words of each pair's first overlap

    def __str__(self) -> str:
        """One line for each source, then one for each benchmark that it overlaps."""
        lines = []
        for source, count in sorted(self.rows.items()):
            found = {name: n for (of, name), n in sorted(self.shared.items()) if of == source}
            lines.append(f"{source:24} {count:7} rows, overlapping: {sum(found.values())}")
            lines += [f"    {name}: {n}, such as: {self.examples[source, name]}" for name, n in found.items()]
        lines.append(f"{'all':24} {self.rows.total():7} rows, overlapping: {self.shared.total()}")
        return "\n".join(lines)


class Benchmarks:
    """All runs of words of all texts of some benchmarks: prompts, reference answers and tests alike."""

    def __init__(self, folder: Path) -> None:
        """Reads every ``*.jsonl``, ``*.jsonl.xz`` and ``*.jsonl.gz`` below a folder, each line an object.

        A text of fewer than ``RUN_WORDS`` words is one run if it has at least four.

        Raises:
            UsageError: If there is none.
        """
        self._runs: dict[tuple[str, ...], str] = {}
        self.texts: Counter[str] = Counter()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and ".jsonl" in path.suffixes[-2:]:
                name = path.relative_to(folder).as_posix()
                with _OPENERS[path.suffix](path, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        for text in _strings(json.loads(line)):
                            self._add(name, text)
        if not self.texts:
            raise UsageError(f"{folder} holds no benchmark.", "It should hold *.jsonl, *.jsonl.xz or *.jsonl.gz files.")

    def _add(self, name: str, text: str) -> None:
        words = _words(text)
        if len(words) >= 4:
            self.texts[name] += 1
            for run in _runs_of(words):
                self._runs.setdefault(run, name)

    def find(self, row: Row) -> tuple[str, str] | None:
        """The first overlap of a row, as (benchmark, the words)."""
        for text in (row.text, *(message["content"] for message in row.messages)):
            words = _words(text)
            for run in _runs_of(words) if len(words) >= 4 else ():
                if name := self._runs.get(run):
                    return name, " ".join(run)
        return None

    def clean(self, rows: Iterable[Row], found: Overlaps) -> Iterator[Row]:
        """Yields the rows that overlap no benchmark; adds the overlaps of the others to ``found``."""
        for row in rows:
            found.rows[row.source] += 1
            if overlap := self.find(row):
                pair = (row.source, overlap[0])
                found.shared[pair] += 1
                found.examples.setdefault(pair, overlap[1])
            else:
                yield row


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs_of(words: list[str]) -> Iterator[tuple[str, ...]]:
    for start in range(max(1, len(words) - RUN_WORDS + 1)):
        yield tuple(words[start : start + RUN_WORDS])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
