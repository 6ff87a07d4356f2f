"""Heads in files of their own that llama.cpp runs, on tiny pairs with known guesses: the text stays the target's."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.drafters import block_file, gemma4_file, mtp_file
from tests.drafters.test_mtp import OPTIONS, reply

from slipstream.app.engine.drafter_list import Drafters
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Step
from slipstream.drafters.resources import Resources
from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import check_vocabulary, role_of
from slipstream.models.heads.matching_heads import matching_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import History, Token


@dataclass(frozen=True)
class Pair:
    method: str
    target: Callable[[Path], Path]
    head: Callable[[Path, bool], Path]  # whose guesses are right, or wrong
    follower: Callable[[Token], Token]  # the token that the target most likely writes after another one
    first: Token

    def write(self, folder: Path, right: bool = True) -> tuple[Path, Path]:
        return self.target(folder / "target.gguf"), self.head(folder / "head.gguf", right)

    def text(self, length: int) -> list[Token]:
        tokens = [self.first]
        while len(tokens) < length:
            tokens.append(self.follower(tokens[-1]))
        return tokens


def _block(kind: str, architecture: str = "qwen3", keys: Mapping[str, Any] = {}) -> Pair:
    return Pair(
        "dspark" if kind == "dspark" else "dflash",
        lambda path: block_file.write_target(path, architecture),
        lambda path, right: block_file.write_head(path, kind, right, keys=keys),
        block_file.follower,
        block_file.FIRST,
    )


def _mtp(architecture: str) -> Pair:
    return Pair(
        "mtp",
        lambda path: mtp_file.write_mtp(path, architecture, part="target"),
        lambda path, right: mtp_file.write_mtp(path, architecture, "right" if right else "wrong", "layer"),
        mtp_file.follower,
        5,
    )


PAIRS: Final = {
    "dflash2": _block("dflash2"),
    "dspark": _block("dspark"),
    "dspark that guesses behind its first row": _block("dspark", keys={"sample_from_anchor": False}),
    "dflash with M-RoPE": _block("dflash", keys={"rope.dimension_sections": [32, 0, 0, 0]}),
    "dflash with a sliding window": _block(
        "dflash", keys={"attention.sliding_window": 24, "attention.sliding_window_pattern": [True]}
    ),
    "dflash": _block("dflash"),
    "dflash on llama": _block("dflash", "llama"),
    **{f"mtp on {architecture}": _mtp(architecture) for architecture in mtp_file.ARCHITECTURES},
    "mtp on gemma4": Pair(
        "mtp", gemma4_file.write_target, gemma4_file.write_assistant, block_file.follower, block_file.FIRST
    ),
}


def two_turns(
    pair: Pair, target_file: Path, head: Path, way: str, temperature: float, seed: int
) -> tuple[list[Token], list[Step], dict[str, str]]:
    """A reply, the text cut in its midst and given another end, and a second reply; texts, steps, drafters that
    failed."""
    with closing(LlamaModel(target_file)) as model, closing(LlamaTarget(model, OPTIONS)) as target:
        heads = matching_heads(model.header, [head])
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
    for seed in range(3):
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
                assert paths == deep if temperature == 0 else max(paths) > 3
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


@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, kv="q8_0", flash=True), replace(OPTIONS, flash=True)])
def test_an_assistant_opened_in_mid_chat_reads_the_targets_cache(tmp_path: Path, options: ContextOptions) -> None:
    """This one hears the cache alone, eight places before the last token; llama.cpp empties it when it is opened."""
    path = gemma4_file.write_target(tmp_path / "target.gguf")
    head = gemma4_file.write_assistant(tmp_path / "head.gguf", cache=True)
    texts: list[list[Token]] = []
    for way in ("none", "mtp"):
        with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, options)) as target:
            resources = Resources(target.abilities, heads={"mtp": head}, llama=target, header=model.header)
            with closing(Drafters(resources, target, 1.0, Profile(None, ""))) as drafters:
                history = History(PAIRS["mtp on gemma4"].text(20))
                reply(target, drafters.get("none"), history)
                steps = reply(target, drafters.get(way), history, deep=1)
                steps += reply(target, drafters.get("none"), history)
                texts.append(history.tokens)
                assert not drafters.new_failures()
    assert texts[0] == texts[1]
    drafted = [step for step in steps if len(step.draft.tree)]
    assert len(drafted) > 15 and all(len(step.path) == 1 for step in drafted)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_a_hybrid_target_gets_chains(tmp_path: Path, kind: str) -> None:
    """Qwen3.5 takes back few rows, and counts positions in sections, as its heads do."""
    keys = {"target_layers": [0, 1], "rope.dimension_sections": [32, 0, 0, 0]}
    pair = Pair(
        _block(kind).method, lambda path: mtp_file.write_mtp(path, "qwen35", part="target"),
        lambda path, right: block_file.write_head(path, kind, right, keys=keys), mtp_file.follower, 5,
    )  # fmt: skip
    target, head = pair.write(tmp_path)
    plain, _, _ = two_turns(pair, target, head, "none", 0.8, 1)
    text, steps, failed = two_turns(pair, target, head, pair.method, 0.8, 1)
    assert (text, failed) == (plain, {})
    assert sum(len(step.draft.tree) for step in steps) > 10
    assert all(step.draft.tree.leaves == 1 for step in steps)


def test_a_file_of_mtp_layers_is_no_model(tmp_path: Path) -> None:
    layer = mtp_file.write_mtp(tmp_path / "layer.gguf", "qwen35", part="layer")
    assert role_of(read_header(layer)) == "drafter"
    with pytest.raises(ModelFileError, match="is a drafter's file"):
        check_vocabulary(read_header(layer))
