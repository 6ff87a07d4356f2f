"""The first-ranked chain of a head is llama.cpp's own draft, token for token, on the same files.

Skipped unless ``SLIPSTREAM_PEER_PYTHON`` names a Python that has xllamacpp, whose server is llama.cpp's own::

    python -m venv peer && peer/bin/pip install xllamacpp==2026.10.11549
    SLIPSTREAM_PEER_PYTHON=peer/bin/python python -m pytest tests/drafters/test_chain_of_llama_cpp.py

That version is of llama.cpp's b11549 of 2026-10-10. llama-cpp-python 0.3.36 has the commit 0c1e57098 of 2026-10-01, and
no version of xllamacpp is of that very commit: the one before is 2026.9.11063, with which this passes, too. Targets and
heads are tiny: weights with known guesses and so much noise that some drafts are right and others are not. The server's
log says each token that it drafts; of DFlash2 it says their number only. ``-s`` shows how many were compared.

Before a text's first pair, llama.cpp's MTP has one more: the first token, with the last feature of the server's text
before, or zeros. Ours has none, so the drafts may differ; here it is given one, and each text a server of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.drafters import block_file, mtp_file
from tests.drafters.changed_file import changed

from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import StopRules
from slipstream.drafters.base import Drafter
from slipstream.drafters.dflash import open_dflash
from slipstream.drafters.dspark import open_dspark
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.mtp import open_mtp
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

PEER: Final = os.environ.get("SLIPSTREAM_PEER_PYTHON", "")
SIZE: Final = 48  # tokens of a reply
PROMPTS: Final = 6
N_CTX: Final = 512

pytestmark = [
    pytest.mark.skipif(not PEER, reason="SLIPSTREAM_PEER_PYTHON names no Python that has xllamacpp"),
    pytest.mark.program,
]


@dataclass
class Round:
    """One draft: how long the text was, its last token included; what was drafted, and how much of it was right."""

    length: int
    last: Token
    drafted: list[Token] = field(default_factory=list)
    accepted: int = 0


@dataclass
class Kind:
    """A kind of head: how llama.cpp calls it, how long its drafts are, its files and its drafter."""

    name: str
    deep: int
    first: int  # tokens before this one are never said
    tokens: int
    write: Callable[[Path, int], tuple[Path, Path | None]]
    open: Callable[[LlamaTarget, Path | None], Drafter]
    noise: float  # in all weights; with it, between a twentieth and nearly all of the drafted tokens are right
    told: bool = True  # whether the server says what it drafts


def noisy(source: Path, copy: Path, seed: int, noise: float, first: int) -> Path:
    """A copy with noise in all weights, but not in those that make it say the special tokens."""
    rng, header, tensors = np.random.default_rng(seed), read_header(source), dict[str, Any]()
    for tensor in header.tensors:
        values = read_tensor(header, tensor)
        added = noise * rng.normal(size=values.shape)
        if tensor.name == "output.weight":
            added[:first] = 0.0
        tensors[tensor.name] = (values + added).astype(np.float32)
    return changed(source, copy, tensors=tensors)


def block_kind(name: str, deep: int, noise: float) -> Kind:
    def write(folder: Path, seed: int) -> tuple[Path, Path | None]:
        target = block_file.write_target(folder / "target.gguf")
        head = block_file.write_head(folder / "head.gguf", name)
        return (
            noisy(target, folder / "noisy-target.gguf", seed, noise, block_file.FIRST),
            noisy(head, folder / "noisy-head.gguf", seed + 1, noise, block_file.FIRST),
        )

    def open_one(target: LlamaTarget, head: Path | None) -> Drafter:
        assert head
        return (open_dspark if name == "dspark" else open_dflash)(head, target)

    return Kind(name, deep, block_file.FIRST, block_file.TOKENS, write, open_one, noise, told=name != "dflash2")


def mtp_kind(architecture: str, deep: int, noise: float) -> Kind:
    def write(folder: Path, seed: int) -> tuple[Path, Path | None]:
        target = mtp_file.write_mtp(folder / "target.gguf", architecture)
        return noisy(target, folder / "noisy-target.gguf", seed, noise, 3), None

    return Kind("mtp", deep, 3, mtp_file.TOKENS, write, lambda target, _: open_mtp(target), noise)


KINDS: Final = {
    "dflash": block_kind("dflash", block_file.BLOCK - 1, 0.015),
    "dflash2": block_kind("dflash2", block_file.BLOCK - 1, 0.015),
    "dspark": block_kind("dspark", block_file.BLOCK, 0.02),
    "mtp": mtp_kind("glm4moe", 5, 0.04),
}


def of_server(model: Path, head: Path | None, kind: Kind, prompts: list[list[Token]]) -> tuple[Any, list[list[Round]]]:
    """The server's figures, and its rounds of each reply, from its log."""
    name = "dflash" if kind.name == "dflash2" else kind.name
    asked = {"model": str(model), "head": str(head) if head else "", "kind": name, "deep": kind.deep, "n_ctx": N_CTX}
    answer = subprocess.run(
        [PEER, str(Path(__file__).with_name("server_drafts.py"))],
        input=json.dumps({**asked, "tokens": SIZE, "prompts": prompts}),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    replies, waiting = dict[str, list[Round]](), list[Token]()
    for line in answer.stderr.splitlines():
        if found := re.search(r"draft candidate +0, pos +\d+: +(\d+) ", line):
            waiting.append(int(found[1]))
        elif found := re.search(r"task (\d+) \| generate_draft: id=(\d+), #tokens=(\d+), #draft=(\d+)", line):
            task, last, length, count = found[1], int(found[2]), int(found[3]), int(found[4])
            drafted = waiting[:count] if kind.told else [-1] * count
            assert len(drafted) == count
            replies.setdefault(task, []).append(Round(length + 1, last, drafted))
            waiting = []
        elif found := re.search(r"task (\d+) \| add accepted tokens: sampled=-?\d+, ids.size=(\d+)", line):
            replies[found[1]][-1].accepted = int(found[2]) - 1
    return json.loads(answer.stdout), list(replies.values())


def of_ours(target: LlamaTarget, drafter: Drafter, text: list[Token], deep: int) -> tuple[list[Token], list[Round]]:
    """Our reply to a text, and its rounds: chains of the first-ranked tokens."""
    target.rewind(0)
    target.request(drafter.needs.hidden)
    history, rounds = History(list(text)), list[Round]()
    drafter.begin(history)
    if isinstance(drafter, FeatureDrafter):  # the pair that llama.cpp has and ours has not
        drafter._head.append(text[:1], np.zeros((1, mtp_file.WIDTH), np.float32), answer=False)
    target.prefill(text[:-1], lambda chunk: drafter.on_prefill(chunk.tokens, chunk.hidden))
    rules = StopRules(frozenset(), N_CTX - len(text), SIZE - 1, (), lambda token: b"")
    sampler = Sampler(temperature=0.0)

    def extend(_probability: float, depth: int) -> bool:  # as long as llama.cpp's, which the reply's end limits, too
        return depth <= min(deep, rules.left() - 1)

    for step in generate(target, drafter, sampler, history, extend, rules, lambda: False):
        before = history.tokens[: len(history.tokens) - len(step.tokens)]
        assert step.draft.tree.leaves <= 1
        rounds.append(Round(len(before), before[-1], list(step.draft.tree.tokens), len(step.path)))
    while not rounds[-1].drafted:  # the reply's last token has no round in the log
        rounds.pop()
    return history.tokens, rounds


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_each_draft_is_llama_cpps_own(tmp_path: Path, name: str, seed: int) -> None:
    kind, rng = KINDS[name], np.random.default_rng(seed)
    model_file, head = kind.write(tmp_path, 10 * seed)
    prompts = [
        [int(token) for token in rng.integers(kind.first, kind.tokens, int(rng.integers(5, 60)))]
        for _ in range(PROMPTS)
    ]
    together = [prompts] if name != "mtp" else [[prompt] for prompt in prompts]
    answers = [of_server(model_file, head, kind, each) for each in together]
    theirs = [rounds for _, found in answers for rounds in found]
    replies = [reply for figures, _ in answers for reply in figures["replies"]]
    assert len(theirs) == PROMPTS
    options = ContextOptions(n_ctx=N_CTX, threads=1, max_leaves=1)  # chains only
    with closing(LlamaModel(model_file)) as model, closing(LlamaTarget(model, options)) as target:
        for prompt, reply, rounds in zip(prompts, replies, theirs, strict=True):
            with closing(kind.open(target, head)) as drafter:
                text, own = of_ours(target, drafter, [*prompt, rounds[0].last], kind.deep)
            if not kind.told:
                for round_ in own:
                    round_.drafted = [-1] * len(round_.drafted)
            assert own == rounds
            assert "".join(said(token, kind) for token in text[len(prompt) :]) == reply["text"]
            assert reply["drafted"] == sum(len(round_.drafted) for round_ in own)
            assert reply["accepted"] == sum(round_.accepted for round_ in own)
    drafted = sum(len(round_.drafted) for rounds in theirs for round_ in rounds)
    accepted = sum(round_.accepted for rounds in theirs for round_ in rounds)
    print(f"{name}, seed {seed}: {sum(map(len, theirs))} drafts, {drafted} tokens drafted, {accepted} accepted")
    assert drafted > 200 and 0.05 < accepted / drafted < 0.95


def said(token: Token, kind: Kind) -> str:
    """A token's text."""
    characters = mtp_file.CHARACTERS if kind.name == "mtp" else mtp_file.CHARACTERS[1:]
    start = 3 if kind.name == "mtp" else 4
    return characters[token - start].replace("\u2581", " ")
