"""What the index adds to ``lookup``: tokens a step and a cost, on past chats of one person and on code, replayed.

No model runs: what was really written is what a target would have written, and a drafter needs only its token ids. A
step costs what a pass over its rows costs, by tables that were measured; where no draft pays, it is a plain pass.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from slipstream.app.bench.prompts import unpacked
from slipstream.drafters.base import Draft, Drafter, Step
from slipstream.drafters.combine import in_order, together
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index import TextIndex, TextPiece
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, Evaluation, History, Token

COSTS: Final[Mapping[str, Mapping[int, float]]] = MappingProxyType(
    {  # passes of one row that a pass over so many rows costs; a 135M model on two cores, and a large GPU
        "Q4_0": {1: 1.0, 2: 1.26, 4: 1.54, 8: 2.28, 16: 3.41, 32: 6.0},
        "BF16": {1: 1.0, 2: 1.16, 4: 1.51, 8: 2.03, 16: 2.74, 32: 4.4},
        "GPU": {1: 1.0, 2: 1.02, 4: 1.05, 8: 1.1, 16: 1.2, 32: 1.3},
    }
)
BARS: Final = (0.7, 0.5, 0.3, 0.15, 0.07)  # least probabilities of a path; each drafter takes what is best at a cost
ORDERS: Final = ("lookup", "retrieval", "retrieval|lookup", "lookup+retrieval", "retrieval+lookup")

_DEEPEST: Final = 16
_ROWS: Final = 32
_REPLY: Final = 256  # most tokens that are replayed of a text
_INDEXED: Final = 3_000  # most chats that are past
_LATER_COMMITS: Final = 100  # the index holds the repository as it stood so many commits ago
_LINES_BEFORE: Final = 60  # lines of a file that stand before a function that is replayed
_SHORT: Final = 40  # tokens of the shortest function that is replayed
_RESAMPLES: Final = 2_000
_NO_ROWS: Final = Evaluation(np.zeros((1, 1), np.float32))
_LIMITS: Final = Abilities(n_vocab=1 << 20, n_ctx=1 << 20, n_embd=0, n_layer=0, max_rows=_ROWS, max_leaves=8)

Ids = list[Token]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is indexed, and what is written later."""

    name: str
    indexed: Sequence[Ids]
    replayed: Sequence[tuple[Ids, Ids]]  # prompt, and what is written after it


@dataclass(frozen=True, slots=True)
class RetrievalRow:
    """What a drafter gains on a workload."""

    workload: str
    drafter: str
    cost: str
    bar: float  # the best of ``BARS`` at that cost
    tokens_per_step: float
    accepted: float  # accepted tokens of the drafted ones
    speedup: float  # tokens a cost, against plain passes
    over_lookup: float  # the same, against ``lookup``
    low: float  # 95 % interval of that, over texts
    high: float


@dataclass(slots=True)
class _Count:
    """Steps of one text."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rows: list[int] | None = None


def measure_retrieval(model: Path, texts: Path | None, limit: int, tell: Callable[[str], object]) -> list[RetrievalRow]:
    """Replays every workload with every drafter.

    Args:
        model: Its vocabulary gives the ids.
        texts: A folder; each ``.jsonl`` in it (plain or packed) holds the chats of one person, a line an object with
            ``messages``. None for code alone.
        limit: Most texts that are replayed of a workload.
    """
    rows = []
    with closing(LlamaModel(model, vocabulary_only=True)) as opened:
        for load in workloads(partial(opened.tokenize, special=False), texts, limit):
            tell(f"retrieval: {load.name}, {sum(map(len, load.indexed)):,} indexed tokens")
            rows += _measured(load)
    return rows


def workloads(tokenize: Callable[[str], Ids], texts: Path | None, limit: int) -> Iterator[Workload]:
    """Yields the workloads that have texts to replay."""
    for path in sorted(texts.glob("*.jsonl*")) if texts else ():
        lines = unpacked(path, "Give --texts another folder.").split("\n")
        chats = [chat for line in lines if line and (chat := json.loads(line).get("messages"))]
        past, later = chats[: min(_INDEXED, len(chats) * 4 // 5)], chats[len(chats) * 4 // 5 :]
        if past and later:
            indexed = [tokenize(f"{ask}\n{reply}") for chat in past for ask, reply in _pairs(chat)]
            replayed = [_last_turn(tokenize, chat) for chat in later[:limit]]
            yield Workload(f"chats: {path.name.split('.')[0]}", indexed, replayed)
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    half = [path.read_text(encoding="utf-8") for path in library if _even(path.name)]
    other = [path.read_text(encoding="utf-8") for path in library if not _even(path.name)]
    yield _code("code: the standard library", half, other, tokenize, limit)
    if (Path(__file__).parents[2] / ".git").exists():
        before, now = (_tree(commit) for commit in (f"HEAD~{_LATER_COMMITS}", "HEAD"))
        changed = [text for name, text in now.items() if before.get(name) != text]
        yield _code("code: this repository, changed since", list(before.values()), changed, tokenize, limit)


def retrieval_text(rows: Sequence[RetrievalRow]) -> str:
    """The table; a gain over lookup with its 95 % interval over texts."""
    lines = [f"{'workload':40} {'drafter':18} cost    bar  tokens/step  accepted  speed-up  over lookup"]
    lines += [
        f"{row.workload:40} {row.drafter:18} {row.cost:5} {row.bar:5.2f} {row.tokens_per_step:12.2f} "
        f"{row.accepted:9.0%} {row.speedup:9.2f}  {row.over_lookup:.2f} ({row.low:.2f} to {row.high:.2f})"
        for row in rows
    ]
    return "\n".join(lines)


def _pairs(chat: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for ask, reply in pairwise(chat):
        if reply["role"] == "assistant":
            yield ask["content"], reply["content"]


def _last_turn(tokenize: Callable[[str], Ids], chat: Sequence[Mapping[str, str]]) -> tuple[Ids, Ids]:
    """The last reply of a chat, after all that was said before."""
    last = max(at for at, message in enumerate(chat) if message["role"] == "assistant")
    before = "\n".join(message["content"] for message in chat[:last]) + "\n"
    return tokenize(before), tokenize(chat[last]["content"])[:_REPLY]


def _even(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def _tree(commit: str) -> dict[str, str]:
    """The Python files of a commit of this repository, by path."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout

    names = [name for name in git("ls-tree", "-r", "--name-only", commit).splitlines() if name.endswith(".py")]
    return {name: git("show", f"{commit}:{name}") for name in names}


def _code(
    name: str, indexed: Sequence[str], files: Sequence[str], tokenize: Callable[[str], Ids], limit: int
) -> Workload:
    """Functions that the indexed files do not hold, each after the lines before it in its file."""
    known = "\0".join(indexed)
    found: list[tuple[Ids, Ids]] = []
    for text in files:
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                head, body = node.lineno, node.end_lineno or node.lineno
                written = "".join(lines[head:body])
                if written not in known:
                    before = "".join(lines[max(0, head - _LINES_BEFORE) : head])
                    found.append((tokenize(before), tokenize(written)[:_REPLY]))
    long = [pair for pair in found if len(pair[1]) >= _SHORT]
    step = max(1, len(long) // limit)
    return Workload(name, [tokenize(text) for text in indexed], long[::step][:limit])


def _measured(load: Workload) -> list[RetrievalRow]:
    counts: dict[tuple[str, float], list[_Count]] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = TextIndex(Path(folder), "retrieval", _LIMITS.n_vocab)
        index.add([TextPiece(str(number), ids) for number, ids in enumerate(load.indexed)])
        with closing(index):
            for order in ORDERS:
                for bar in BARS:
                    drafter = _drafter(order, index)
                    counts[order, bar] = [_replayed(drafter, prompt, text, bar) for prompt, text in load.replayed]
    rows = []
    for cost in COSTS:
        best = {order: max(BARS, key=lambda bar, o=order: _speed(counts[o, bar], cost)) for order in ORDERS}  # type: ignore[misc]
        base = counts["lookup", best["lookup"]]
        for order in ORDERS:
            found = counts[order, best[order]]
            low, high = _interval(found, base, cost)
            steps = sum(len(count.rows or ()) for count in found)
            rows.append(
                RetrievalRow(
                    workload=load.name,
                    drafter=order,
                    cost=cost,
                    bar=best[order],
                    tokens_per_step=sum(count.tokens for count in found) / steps,
                    accepted=sum(c.accepted for c in found) / max(1, sum(c.drafted for c in found)),
                    speedup=_speed(found, cost),
                    over_lookup=_speed(found, cost) / _speed(base, cost),
                    low=low,
                    high=high,
                )
            )
    return rows


def _drafter(order: str, index: TextIndex) -> Drafter:
    made: dict[str, Callable[[], Drafter]] = {"lookup": PromptLookup, "retrieval": partial(Retrieval, index)}
    if "|" in order:
        return together([made[name]() for name in order.split("|")], _LIMITS)
    chained = [made[name]() for name in order.split("+")]
    return chained[0] if len(chained) == 1 else in_order(chained)


def _replayed(drafter: Drafter, prompt: Ids, text: Ids, bar: float) -> _Count:
    history, sampler, count = History(list(prompt)), Sampler(temperature=0), _Count(rows=[])
    assert count.rows is not None
    drafter.begin(history)
    at = 0
    while at < len(text):
        left = len(text) - at - 1

        def pays(path: float, depth: int, left: int = left) -> bool:
            return path >= bar and depth <= min(_DEEPEST, left)

        draft = drafter.draft(history, pays, sampler)
        path = _accepted(draft, text[at:])
        tokens = tuple(text[at : at + len(path) + 1])
        history.tokens += tokens
        drafter.observe(history, Step(draft, path, tokens, _NO_ROWS))
        at += len(tokens)
        count.tokens += len(tokens)
        count.drafted += len(draft.tree)
        count.accepted += len(path)
        count.rows.append(1 + len(draft.tree))
    return count


def _accepted(draft: Draft, text: Sequence[Token]) -> tuple[int, ...]:
    """The nodes that the text goes down, root to leaf."""
    path: list[int] = []
    edges = zip(draft.tree.parents, draft.tree.tokens, strict=True)
    below = {edge: node for node, edge in enumerate(edges)}
    at = ROOT
    for token in islice(text, len(text) - 1):
        if (node := below.get((at, token))) is None:
            break
        path.append(node)
        at = node
    return tuple(path)


def _costs(count: _Count, cost: str) -> float:
    table = COSTS[cost]
    return float(np.interp(count.rows or [], list(table), list(table.values())).sum())


def _speed(counts: Sequence[_Count], cost: str) -> float:
    return sum(count.tokens for count in counts) / sum(_costs(count, cost) for count in counts)


def _interval(ours: Sequence[_Count], base: Sequence[_Count], cost: str) -> tuple[float, float]:
    """95 % of the ratios of speeds over resampled texts; both have the same tokens."""
    mine, theirs = (np.array([_costs(count, cost) for count in each]) for each in (ours, base))
    drawn = np.random.default_rng(1).integers(0, len(mine), (_RESAMPLES, len(mine)))
    ratios = theirs[drawn].sum(1) / mine[drawn].sum(1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)
