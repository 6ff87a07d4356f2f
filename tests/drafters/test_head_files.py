"""Heads in files of their own that llama.cpp runs, on tiny pairs with known guesses: the text stays the target's."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.drafters import block_file, gemma4_file, mtp_file
from tests.drafters.changed_file import changed
from tests.drafters.test_mtp import OPTIONS, reply

from slipstream.app.engine.drafter_list import Drafters
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Step
from slipstream.drafters.registry import why_not
from slipstream.drafters.resources import Resources
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.probe import SHIPPED
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import check_vocabulary, role_of
from slipstream.models.heads.matching_heads import matching_heads, unfit_mtp
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


@dataclass(frozen=True)
class Damage:
    reason: str
    keys: Mapping[str, Any] = field(default_factory=dict)  # by their names without the architecture; new values
    added: Mapping[str, Any] = field(default_factory=dict)  # settings that a good file does not have
    tensors: Mapping[str, NDArray[Any] | None] = field(default_factory=dict)
    tokens: int = 0  # tokens of its vocabulary; 0 for all
    renamed: bool = False  # whether its tokens are other ones
    kept: int = 0  # bytes; 0 for all


def _zeros(*shape: int, kind: type = np.float32) -> NDArray[Any]:
    return np.zeros(shape, kind)


def _ids(*ids: int) -> dict[str, NDArray[Any]]:
    return {"d2t": np.array(ids, np.int64), "output.weight": _zeros(len(ids), block_file.WIDTH)}


W, V = block_file.WIDTH, block_file.TOKENS
COMMON: Final = [
    Damage("reads the input of layer 99, which this model does not hand out", {"target_layers": [0, 99]}),
    Damage("reads the input of layer -1", {"target_layers": [-1, 0]}),
    Damage("cannot load", {"target_layers": [0, 1, 2]}),
    Damage("has 47 tokens, and this model 48", tokens=V - 1),
    Damage("for another vocabulary: token 4 is '▁' in one and 'other4' in the other", renamed=True),
    Damage("does not say which token is the mask", {"tokenizer.ggml.mask_token_id": 2**32 - 1}),
    Damage("blocks of 1 rows", {"block_size": 1}),
    Damage("blocks of 65 rows", {"block_size": 65}),
    Damage("attention heads contradict", {"attention.value_length": 32}),
    Damage("cannot share", {"attention.head_count_kv": 3}),
    Damage("sections of rotated numbers", added={"rope.dimension_sections": [0, 0, 0, 0]}),
    Damage("which layers have a sliding window", added={"attention.sliding_window": 8}),
    Damage(
        "which layers have a sliding window",
        added={"attention.sliding_window": 8, "attention.sliding_window_pattern": [False]},
    ),
    Damage("DeepSeek-V4", added={"hyper_connection.count": 4}),
    Damage("the map of its vocabulary does not fit", tensors={"d2t": _zeros(V, kind=np.int64)}),
    Damage("different tokens", tensors=_ids(9, 9, 10, 11, 12, 13)),
    Damage("different tokens", tensors=_ids(9, 10, 11, 12, 13, V)),
    Damage("cannot load", tensors={"fc.weight": None}),
    Damage("cannot load", tensors={"fc.weight": _zeros(W, W)}),
    Damage("not a number", tensors={"output_norm.weight": np.full(W, np.nan, np.float32)}),
    Damage("is cut short", kept=3000),
]
SELECTOR: Final = [
    Damage("cannot load", {"selector_top_k": 0}),
    Damage("the sizes of its selector", {"selector_top_k": 63}),
    Damage("the sizes of its selector", {"conv_kernel_size": 0}),
    Damage("the sizes of its selector", {"conv_kernel_size": 2**31}),
    Damage("cannot load", {"conv_group_size": 0}),
    Damage("cannot load", tensors={"selector_successor.weight": _zeros(V - 1, V)}),
    Damage("cannot load", tensors={"blk.0.ffn_conv_base": None}),
    Damage("not a number", tensors={"selector_hidden.weight": np.full((V, W), np.nan, np.float32)}),
]
MARKOV: Final = [
    Damage("cannot load", tensors={"markov_w2.weight": None}),
    Damage("cannot load", tensors={"markov_w1.weight": _zeros(V - 1, V)}),
    Damage("not a number", tensors={"markov_w1.weight": np.full((V, V), np.nan, np.float32)}),
]
LAYER: Final = f"blk.{mtp_file.LAYERS - 1}"
MTP: Final = [
    Damage("for a model 32 wide", {"embedding_length": 32, "attention.key_length": 8, "rope.dimension_count": 8}),
    Damage("has 2 MTP layers", {"nextn_predict_layers": 2}),
    Damage("other layers than those of MTP", {"nextn_predict_layers": 0}),
    Damage("leaves out", tensors={f"{LAYER}.nextn.eh_proj.weight": None}),
    Damage("leaves out", tensors={f"{LAYER}.nextn.enorm.weight": None}),
    Damage("other layers than those of MTP", tensors={"blk.0.attn_norm.weight": _zeros(mtp_file.WIDTH)}),
    Damage("cannot load", tensors={f"{LAYER}.nextn.eh_proj.weight": _zeros(mtp_file.WIDTH, mtp_file.WIDTH)}),
    Damage("cannot load", tensors={"token_embd.weight": None}),
    Damage("for another vocabulary", renamed=True),
    Damage("have 47 tokens, and this model 48", tokens=mtp_file.TOKENS - 1),
    Damage("not a number", tensors={f"{LAYER}.nextn.enorm.weight": np.full(mtp_file.WIDTH, np.nan, np.float32)}),
    Damage("is cut short", kept=3000),
]
ASSISTANT: Final = [
    Damage("for a model 63 wide", {"embedding_length_out": 63}),
    Damage("contradict", {"nextn_predict_layers": 1}),
    Damage("sliding window of another size", {"attention.sliding_window": 8}),
    Damage("which layers have a sliding window", {"attention.sliding_window_pattern": [True]}),
    Damage("which layers have a sliding window", {"attention.sliding_window_pattern": [False, False]}),
    Damage("heads 32 wide", {"attention.key_length_swa": 32, "attention.value_length_swa": 32}),
    Damage("contradict", {"attention.value_length": 32}),
    Damage("contradict", {"rope.dimension_count_swa": 128}),
    Damage("for another vocabulary", renamed=True),
    Damage("have 47 tokens, and this model 48", tokens=V - 1),
    Damage("cannot load", tensors={"nextn.post_projection.weight": None}),
    Damage("cannot load", tensors={"nextn.pre_projection.weight": _zeros(80, 64)}),
    Damage("not a number", tensors={"output_norm.weight": np.full(80, np.nan, np.float32)}),
    Damage("is cut short", kept=3000),
]

CASES: Final = {
    "dflash": COMMON, "dflash2": [*COMMON, *SELECTOR], "dspark": [*COMMON, *MARKOV], "mtp on qwen35": MTP,
    "mtp on glm4moe": MTP, "mtp on gemma4": ASSISTANT,
}  # fmt: skip
ADDING: Final[Mapping[str, Callable[[Path, Mapping[str, Any]], Path]]] = {
    kind: lambda path, added, kind=kind: block_file.write_head(path, kind, keys=added)  # type: ignore[misc]
    for kind in ("dflash", "dflash2", "dspark")
}


def damaged(name: str, damage: Damage, folder: Path) -> Path:
    good = folder / "good.gguf"
    if damage.added:
        return ADDING[name](good, damage.added)
    PAIRS[name].head(good, True)
    if damage.kept:
        good.write_bytes(good.read_bytes()[: damage.kept])
        return good
    header = read_header(good)
    keys = {
        key if key.startswith("tokenizer.") else f"{header.architecture}.{key}": damage.keys[key] for key in damage.keys
    }
    assert set(keys) <= set(header.metadata)
    if damage.tokens:
        lists = ("tokens", "scores", "token_type")
        keys = {f"tokenizer.ggml.{key}": header.metadata[f"tokenizer.ggml.{key}"][: damage.tokens] for key in lists}  # type: ignore[index]
    if damage.renamed:
        names = header.metadata["tokenizer.ggml.tokens"]
        keys["tokenizer.ggml.tokens"] = [*names[:4], *(f"other{token}" for token in range(4, len(names)))]  # type: ignore[index,arg-type]
    return changed(good, folder / "bad.gguf", keys, damage.tensors)


def said_of(name: str, head: Path, folder: Path) -> str:
    """What is said of a head by the list of drafters, or by the engine while it drafts; the text stays the target's."""
    pair = PAIRS[name]
    with (
        closing(LlamaModel(pair.target(folder / "target.gguf"))) as model,
        closing(LlamaTarget(model, OPTIONS)) as target,
    ):
        resources = Resources(target.abilities, heads={pair.method: head}, llama=target, header=model.header)
        reason = why_not(pair.method, resources)
        with closing(Drafters(resources, target, 1.0, Profile(None, ""))) as drafters:
            plain, drafted = History(pair.text(20)), History(pair.text(20))
            reply(target, drafters.get("none"), plain, 0.8)
            target.rewind(0)
            reply(target, drafters.get("auto" if reason else pair.method), drafted, 0.8)
            assert drafted.tokens == plain.tokens
            return reason or drafters.new_failures().get(pair.method, "")


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, cases in CASES.items() for number in range(len(cases))]
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, name: str, number: int) -> None:
    damage = CASES[name][number]
    try:
        said = said_of(name, damaged(name, damage, tmp_path), tmp_path)
    except SlipstreamError as error:
        said = error.title
    assert damage.reason in said and said.isprintable()


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    others = [SHIPPED / "slipstream-mini-eagle3-q8_0.gguf", SHIPPED / "slipstream-mini-q8_0.gguf"]
    for number, other in enumerate(PAIRS):
        same = PAIRS[other].method == PAIRS[name].method
        if not same or (PAIRS[name].method == "mtp" and other != name):
            others.append(PAIRS[other].head(tmp_path / f"{number}.gguf", True))
    assert len(others) > 3
    for other_file in others:
        assert said_of(name, other_file, tmp_path)


def test_a_head_for_another_gemma_is_refused(tmp_path: Path) -> None:
    """Sizes that llama.cpp does not compare, and reads the wrong memory for."""
    target = gemma4_file.write_target(tmp_path / "target.gguf")
    head = gemma4_file.write_assistant(tmp_path / "head.gguf")
    kinds: dict[str, tuple[Any, str]] = {
        "attention.sliding_window_pattern": ([True, False, True], "this model ends otherwise"),
        "attention.head_count_kv": ([1, 1, 2], "reads 1 heads of keys, and this model has 2"),
        "attention.key_length": (32, "this model's are of another width"),
    }
    header = read_header(target)
    assert unfit_mtp(read_header(head), header) == ""
    for key, (value, reason) in kinds.items():
        other = replace(header, metadata={**header.metadata, f"gemma4.{key}": value})
        assert reason in unfit_mtp(read_header(head), other)
