"""Rules between metadata and tensors, and bounds of a header's size: each refuses what is wrong and nothing else."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from tests.models.conftest import ARRAY, F32, I32, STRING, U32, RawModel, small_model
from tests.models.mutants import lay_out

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf import parse as gguf_parse
from slipstream.models.gguf.reader import read_header, read_streams

F16, I8, Q8_K = 1, 24, 15
MEGABYTE = 1 << 20


def renamed(name: str, kind: int = 0, shape: tuple[int, ...] = (8, 4)) -> RawModel:
    model = small_model()
    model.tensors.append((name, shape, kind, 0))
    lay_out(model)
    return model


def number(**values: int) -> RawModel:
    model = small_model()
    for key, value in values.items():
        model.number("llama." + key.replace("__", "."), value)
    return model


def lists(key: str, values: list[int], kind: int = U32) -> RawModel:
    return small_model().array(f"llama.{key}", kind, list(values))


def delta_net(inner: int) -> RawModel:
    model = small_model().text("general.architecture", "qwen35")
    for key, value in {"inner_size": inner, "state_size": 32, "time_step_rank": 2}.items():
        model.number(f"qwen35.ssm.{key}", value)
    return model


def lfm2(rows: int) -> RawModel:
    model = renamed("blk.0.attn_q.weight", shape=(8, rows)).text("general.architecture", "lfm2")
    return model.number("lfm2.embedding_length", 8).number("lfm2.attention.head_count", 2)


def bytes_of_text(missing: int | None) -> RawModel:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if missing is not None:
        names[missing] = "x"
    model = small_model().drop("tokenizer.ggml.scores").vocabulary(["<unk>", "<s>", "</s>", *names])
    return model.drop("tokenizer.ggml.token_type")


WRONG: dict[str, Callable[[], RawModel]] = {
    "'blk.0.attn_norm.weight' is stored as F16, not F32": lambda: renamed("blk.0.attn_norm.weight", F16),
    "'blk.0.attn_q.bias' is stored as F16": lambda: renamed("blk.0.attn_q.bias", F16),
    "'blk.0.ssm_a' is stored as F16": lambda: renamed("blk.0.ssm_a", F16),
    "'blk.0.shortconv.conv.weight' is stored as F16": lambda: renamed("blk.0.shortconv.conv.weight", F16),
    "'blk.0.ffn_up.weight' holds no weights but I8": lambda: renamed("blk.0.ffn_up.weight", I8),
    "'output.weight' holds no weights but Q8_K": lambda: renamed("output.weight", Q8_K, (256, 4)),
    "3 heads cannot share 2": lambda: number(attention__head_count=3, attention__head_count_kv=2),
    "2 heads cannot share 3": lambda: lists("attention.head_count_kv", [1, 3]),
    "rotates 6 numbers of heads that have 4": lambda: number(rope__dimension_count=6),
    "rotates 3 numbers": lambda: number(rope__dimension_count=3),
    "rotates 4,096 numbers of heads that have 128": lambda: number(
        rope__dimension_count=4096, attention__key_length=128
    ),
    "in sections of more": lambda: lists("rope.dimension_sections", [3, 2, 0, 0]),
    "'blk.0.attn_q.weight' has 5 rows for 2 heads": lambda: renamed("blk.0.attn_q.weight", shape=(8, 5)),
    "'blk.0.attn_q.weight' has 16 rows for 2 heads": lambda: lfm2(16),
    "2 heads of 32 numbers do not make 128": lambda: delta_net(128),
    "uses 0 of 2 groups of 4 experts": lambda: number(expert_count=4, expert_used_count=2, expert_group_count=2),
    "uses 1 of 3 groups of 4 experts": lambda: number(
        expert_count=4, expert_used_count=2, expert_group_count=3, expert_group_used_count=1
    ),
    "uses 0 of 1 groups of 0 experts": lambda: number(expert_group_count=1),
    "groups of experts are not counted in numbers": lambda: lists("expert_group_count", [1]),
    "sliding_window' is '2147483648', not a number from 0": lambda: number(attention__sliding_window=2**31),
    "'x.a' holds values that are neither true nor false": lambda: small_model().array("x.a", 7, [0, 2]),
    "no token stands for the byte 65": lambda: bytes_of_text(65),
    "no token stands for the byte 200": lambda: bytes_of_text(200),
}
RIGHT: dict[str, Callable[[], RawModel]] = {
    "matrix of norms": lambda: renamed("blk.0.ssm_norm.weight", 0, (4, 2)),
    "F16 matrix": lambda: renamed("blk.0.ffn_up.weight", F16),
    "table of experts": lambda: renamed("blk.0.ffn_gate_tid2eid.weight", 26),
    "table of rows": lambda: renamed("d2t", 27, (8,)),
    "one head shared": lambda: number(attention__head_count=4, attention__head_count_kv=1),
    "layers without attention": lambda: lists("attention.head_count_kv", [0, 2]),
    "heads by layer": lambda: lists("attention.head_count", [2, 4]).array("llama.attention.head_count_kv", U32, [1, 2]),
    "all of a head rotated": lambda: number(rope__dimension_count=4),
    "no width": lambda: number(rope__dimension_count=64).drop("llama.embedding_length"),
    "sections": lambda: lists("rope.dimension_sections", [2, 1, 1, 0], I32),
    "gate beside the queries": lambda: renamed("blk.0.attn_q.weight", shape=(8, 16)),
    "a vector of queries": lambda: renamed("blk.0.attn_q.weight", shape=(5,)),
    "own heads": lambda: lfm2(8),
    "delta net": lambda: delta_net(64),
    "groups": lambda: number(
        expert_count=4, expert_used_count=2, expert_group_count=2, expert_group_used_count=1
    ),
    "one group": lambda: number(expert_count=4, expert_used_count=2, expert_group_count=1, expert_group_used_count=1),
    "window": lambda: number(attention__sliding_window=4096),
    "all bytes": lambda: bytes_of_text(None),
    "no tensors": lambda: RawModel(small_model().pairs),
    "truths": lambda: small_model().array("x.a", 7, [0, 1, 1]),
    "no list of kinds": lambda: small_model().drop("tokenizer.ggml.token_type"),
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_what_contradicts_itself_is_refused(words: str, save: Callable[..., Path]) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_header(save(WRONG[words]()))
    assert words in caught.value.title and caught.value.hint


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_unusual_is_not(name: str, save: Callable[..., Path]) -> None:
    assert read_header(save(RIGHT[name]())).n_layer in (2, None)


def test_a_plain_letter_serves_for_its_byte(save: Callable[..., Path]) -> None:
    model = bytes_of_text(65)
    tokens = model.pairs["tokenizer.ggml.tokens"][1].replace(struct.pack("<Q", 1) + b"x", struct.pack("<Q", 1) + b"A")
    model.pairs["tokenizer.ggml.tokens"] = (ARRAY, tokens)
    assert read_header(save(model)).n_vocab == 259


@pytest.mark.slow
def test_a_header_is_not_read_past_its_bound(tmp_path: Path) -> None:
    model, path = small_model(), tmp_path / "long.gguf"
    for n in range(12):
        model.text(f"x.{n}", b"a" * (4 * MEGABYTE - 1))
    path.write_bytes(model.bytes())
    with pytest.raises(ModelFileError, match="more than the 50,331,648 allowed"):
        read_header(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    content = small_model().bytes()
    with pytest.raises(ModelFileError, match="became shorter while it was read"):
        read_streams(tmp_path / "model.gguf", [(BytesIO(content[:100]), len(content))])


@pytest.mark.parametrize(("bound", "value"), [("MAX_HEADER", 700), ("MAX_TENSORS", 3)])
def test_parts_of_models_share_a_bound(bound: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for part in range(2):
        model = small_model() if part == 0 else RawModel().weights((8, 2), (8,))
        model.tensors = [(f"{part}{name}", *rest) for name, *rest in model.tensors]  # type: ignore[misc]
        model.number("split.no", part, 2).number("split.count", 2, 2).number("split.tensors.count", 5, I32)
        paths.append(tmp_path / f"model-0000{part + 1}-of-00002.gguf")
        paths[part].write_bytes(model.bytes())
    assert len(read_header(paths[0]).tensors) == 5
    sizes = [len(path.read_bytes()) for path in paths]
    monkeypatch.setattr(f"slipstream.models.gguf.reader.{bound}", sizes[0] - 250 if bound == "MAX_HEADER" else value)
    with pytest.raises(ModelFileError, match="headers of its parts are larger"):
        read_header(paths[0])


MANY = 1_990_000
GREEDY: dict[str, Callable[[], tuple[str, int, bytes]]] = {
    "empty texts": lambda: ("x.a", STRING, bytes(8 * MANY)),
    "short texts": lambda: ("x.a", STRING, struct.pack("<Q2s", 2, b"ab") * MANY),
    "wide letters": lambda: ("x.a", STRING, struct.pack("<Q11s", 11, b"abcdefg\xf0\x9f\x98\x80") * MANY),
    "long texts": lambda: ("x.a", STRING, (struct.pack("<Q", 65_000) + b"a" * 64_996 + b"\xf0\x9f\x98\x80") * 700),
    "tokens": lambda: (
        "tokenizer.ggml.tokens",
        STRING,
        b"".join(struct.pack("<Q6s", 6, b"%06x" % n) for n in range(1_000_000)),
    ),
    "numbers": lambda: ("x.a", U32, struct.pack(f"<{MANY}I", *range(10**6, 10**6 + MANY))),
    "fractions": lambda: ("x.a", F32, os.urandom(4 * MANY)),
}
MEASURE = """
import sys
from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import read_header
def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = most()
try:
    read_header(sys.argv[1])
except ModelFileError:
    pass
print((most() - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory")
@pytest.mark.parametrize("name", GREEDY)
def test_no_header_takes_more_than_256_megabytes(name: str, tmp_path: Path) -> None:
    key, kind, body = GREEDY[name]()
    size = {U32: 4, F32: 4}.get(kind)
    count = len(body) // size if size else {"long texts": 700, "tokens": 1_000_000}.get(name, MANY)
    model, path = small_model(), tmp_path / "greedy.gguf"
    model.pairs[key] = (ARRAY, struct.pack("<IQ", kind, count) + body)
    path.write_bytes(model.bytes())
    assert path.stat().st_size < gguf_parse.MAX_HEADER + len(model.data)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 256, done.stdout


@pytest.mark.parametrize(
    ("key", "kind", "values"),
    [("x.a", STRING, ["short", "a" * 5_000]), ("x.b", U32, [1] * 500), ("x.c", STRING, [""] * 1_000)],
)
def test_values_share_one_bound(
    key: str, kind: int, values: list[object], save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(small_model().array(key, kind, values))
    read_header(path)
    monkeypatch.setattr(gguf_parse, "MAX_MEMORY", 6_000)
    with pytest.raises(ModelFileError, match=f"with '{key}' its header takes more memory than the 6,000 allowed"):
        read_header(path)


def test_tokens_that_begin_and_end_a_text(save: Callable[..., Path]) -> None:
    model = small_model().number("tokenizer.ggml.bos_token_id", 2**32 - 1)
    assert read_header(save(model)).bos == 1
    header = read_header(save(model.text("tokenizer.ggml.model", "gemma4")))
    assert header.bos is None and not header.add_bos
