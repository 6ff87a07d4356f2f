"""Heads in files of their own that llama.cpp runs, on tiny pairs with known guesses: the text stays the target's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.drafters import block_file
from tests.drafters.test_mtp import OPTIONS, reply

from slipstream.app.engine.drafter_list import Drafters
from slipstream.drafters import registry
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Step
from slipstream.drafters.resources import Resources
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.matching_heads import companions
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import History, Token


@dataclass(frozen=True)
class Pair:
    """How to write a target and a head for it."""

    method: str
    target: Callable[[Path], Path]
    head: Callable[[Path, bool], Path]  # whose guesses are right, or wrong
    follower: Callable[[Token], Token]  # the token that the target most likely writes after another one
    first: Token

    def write(self, folder: Path, right: bool = True) -> tuple[Path, Path]:
        return self.target(folder / "target.gguf"), self.head(folder / "head.gguf", right)

    def text(self, length: int) -> list[Token]:
        """What the target itself could have written."""
        tokens = [self.first]
        while len(tokens) < length:
            tokens.append(self.follower(tokens[-1]))
        return tokens


def _block(kind: str, architecture: str = "qwen3") -> Pair:
    return Pair(
        "dspark" if kind == "dspark" else "dflash",
        lambda path: block_file.write_target(path, architecture),
        lambda path, right: block_file.write_head(path, kind, right),
        block_file.follower,
        block_file.FIRST,
    )


PAIRS: Final = {"dflash": _block("dflash"), "dflash on llama": _block("dflash", "llama")}


def two_turns(
    pair: Pair, target_file: Path, head: Path, way: str, temperature: float, seed: int
) -> tuple[list[Token], list[Step], dict[str, str]]:
    """A reply, the text cut in its midst and another end put to it, and a second reply.

    Returns:
        Both texts, the steps, and the drafters that failed.
    """
    with closing(LlamaModel(target_file)) as model, closing(LlamaTarget(model, OPTIONS)) as target:
        heads = companions(model.header, [head])
        assert set(heads) == {pair.method}
        resources = Resources(target.abilities, heads=heads, llama=target, header=model.header)
        with closing(Drafters(resources, target, 1.0, Profile(None, ""))) as drafters:
            drafter, history = drafters.get(way), History(pair.text(20))
            steps = reply(target, drafter, history, temperature, 6, seed)
            first = list(history.tokens)
            del history.tokens[35:]
            drafter.rewind(35)
            target.rewind(35)
            history.tokens += pair.text(12)
            steps += reply(target, drafter, history, temperature, 6, seed)
            return first + history.tokens, steps, drafters.new_failures()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", PAIRS)
def test_the_text_is_plain_decodings(tmp_path: Path, name: str, temperature: float) -> None:
    pair = PAIRS[name]
    target, right = pair.write(tmp_path)
    wrong = pair.head(tmp_path / "wrong.gguf", False)
    for seed in range(4):
        plain, _, _ = two_turns(pair, target, right, "none", temperature, seed)
        counts: list[int] = []
        for head in (right, wrong):
            text, steps, failed = two_turns(pair, target, head, pair.method, temperature, seed)
            assert (text, failed) == (plain, {})
            assert all(set(step.draft.sources) <= {pair.method} for step in steps)
            paths = [len(step.path) for step in steps]
            deep = [step.draft.tree.depth for step in steps]
            assert max(deep) > 3
            if head == right:
                assert paths == deep if temperature == 0 else 3 < max(paths) <= sum(paths) < sum(deep)
            counts.append(len(steps))
        assert counts[1] > 1.5 * counts[0]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("way", ["auto", "lookup+{}", "lookup|{}"])
def test_joined_and_under_the_autopilot_the_text_is_plain_decodings(tmp_path: Path, name: str, way: str) -> None:
    pair = PAIRS[name]
    target, head = pair.write(tmp_path)
    for seed in range(2):
        plain, _, _ = two_turns(pair, target, head, "none", 0.8, seed)
        text, steps, failed = two_turns(pair, target, head, way.format(pair.method), 0.8, seed)
        assert (text, failed) == (plain, {})
    assert way == "auto" or any(pair.method in step.draft.sources for step in steps)


@pytest.mark.parametrize("name", PAIRS)
def test_it_lacks_nothing(tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    target, head = pair.write(tmp_path)
    with closing(LlamaModel(target)) as model, closing(LlamaTarget(model, OPTIONS)) as opened:
        heads = companions(read_header(target), [head])
        assert registry.why_not(pair.method, Resources(opened.abilities, heads=heads, llama=opened)) == ""
