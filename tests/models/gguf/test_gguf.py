"""The lists of architectures against llama.cpp: what each memory takes back, of every architecture that it knows."""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from tests.models.conftest import RawModel
from tests.models.kinds import finish

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.architectures import NO_ROLLBACK, ROLLS_BACK
from slipstream.models.gguf.parse import STRING, TENSOR_TYPES
from slipstream.models.gguf.reader import headers_kept, read_header

Save = Callable[..., Path]
U32, F32 = 4, 6
BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


def refusal(path: Path | str) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert "\n" not in caught.value.title and caught.value.title.isprintable()
    assert len(caught.value.title) < 400 + len(str(path)) and caught.value.hint and caught.value.code == 1
    return caught.value


def test_a_good_file(model: RawModel, save: Save) -> None:
    header = read_header(str(save(model)))
    assert (header.architecture, header.name, header.tokenizer_model) == ("llama", "Small", "llama")
    assert (header.n_layer, header.n_embd, header.n_ctx_train, header.n_vocab) == (2, 8, 64, 10)
    assert (header.bos, header.eos, header.add_bos, header.add_eos) == (1, 2, True, False)
    assert header.tokens[5] == "\u2581a" and header.token_types[:4] == (2, 3, 3, 6)
    assert [(t.name, t.shape, t.type_name, t.offset, t.nbytes) for t in header.tensors] == [
        ("t0.weight", (8, 10), "F32", 0, 320),
        ("t1.weight", (8,), "F32", 320, 32),
        ("t2.weight", (3, 5), "F32", 352, 60),
    ]
    assert header.weight_bytes == 412
    assert header.data_offsets[0] + len(model.data) == header.path.stat().st_size
    assert header.chat_template and header.chat_template.startswith("{% for m")


def test_what_the_gguf_package_writes_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(3)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bool("x.flag", True)
    writer.add_array("x.reals", [0.5, 1.5])
    writer.add_array("x.words", ["één", ""])
    writer.add_uint64("x.long", 2**40)
    writer.add_int8("x.short", -3)
    weights = np.ones((4, 64), dtype=np.float32)
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.add_tensor("output_norm.weight", weights[0])
    finish(writer)
    header = read_header(path)
    extra = {key: value for key, value in header.metadata.items() if key.startswith("x.")}
    assert extra == {
        "x.flag": True, "x.reals": [0.5, 1.5], "x.words": ["één", ""], "x.long": 2**40, "x.short": -3
    }  # fmt: skip
    assert [(t.name, t.shape, t.type_name, t.nbytes) for t in header.tensors] == [
        ("token_embd.weight", (64, 4), "Q8_0", 4 * 2 * 34),
        ("output_norm.weight", (64,), "F32", 256),
    ]
    assert header.name == "written" and header.bos is None and not header.add_bos


def test_the_bundled_model() -> None:
    header = read_header(BUNDLED)
    assert header.architecture == "llama" and header.n_vocab > 256
    assert header.chat_template and "<|im_start|>" in header.chat_template
    assert header.tokens[header.eos or 0] == "<|im_end|>"
    assert header.data_offsets[0] + header.weight_bytes <= BUNDLED.stat().st_size


def test_an_unknown_architecture_is_left_to_llama_cpp(model: RawModel, save: Save) -> None:
    assert read_header(save(model.text("general.architecture", "marsupial"))).architecture == "marsupial"


def test_the_fingerprint_names_header_and_size(model: RawModel, save: Save) -> None:
    first = read_header(save(model, "a.gguf")).fingerprint
    assert read_header(save(model, "b.gguf")).fingerprint == first
    assert read_header(save(model.bytes() + b"\0", "c.gguf")).fingerprint != first
    assert read_header(save(model.text("general.name", "Smell"), "d.gguf")).fingerprint != first


def test_within_a_load_a_changed_file_is_reread(model: RawModel, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model)
    assert read_header(path) is not read_header(path)
    with headers_kept():
        assert read_header(path) is not read_header(path)  # too young: another change might leave the same times
        later = time.time() + 60
        monkeypatch.setattr(time, "time", lambda: later)
        first = read_header(path)
        assert read_header(str(path)) is first
        path.write_bytes(path.read_bytes() + b"\0")
        assert read_header(path).fingerprint != first.fingerprint
        path.write_bytes(b"")
        refusal(path)
        path.unlink()
        refusal(path)
    assert read_header(save(model)) is not first


def test_within_a_load_files_share_equal_lists_only(model: RawModel, save: Save) -> None:
    first, longer, other = (["the", "the mill", end] for end in ("river", "rivers", "races"))
    with headers_kept():
        read = [
            read_header(save(model.array("general.tags", STRING, [*words]), f"{n}.gguf")).metadata["general.tags"]
            for n, words in enumerate((first, first, longer, other, first[:2]))
        ]
    assert read == [first, first, longer, other, first[:2]]
    assert read[0] is read[1]


def test_tensor_types_are_those_of_ggml() -> None:
    libraries = _ggml_libraries()
    ggml = ctypes.CDLL(str(libraries[0]))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    known = {n: (ggml.ggml_blck_size(n), ggml.ggml_type_size(n)) for n in range(43)}
    assert {n: facts for n, facts in known.items() if facts[1]} == {n: t[1:] for n, t in TENSOR_TYPES.items()}


def _ggml_libraries() -> list[Path]:
    import llama_cpp

    return sorted((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))


def test_a_file_that_is_missing_a_folder_or_a_pipe(tmp_path: Path, model: RawModel, save: Save) -> None:
    assert refusal(tmp_path / "y.gguf").title == f"{tmp_path}/y.gguf: no such file."
    assert "no such file" in refusal(tmp_path / "a\x1b[31m\n.gguf").title
    assert "cannot be read" in refusal("a\0b.gguf").title
    assert "cannot be read" in refusal(tmp_path / ("n" * 5000)).title.replace("n" * 5000, "n")
    assert refusal(tmp_path).title == f"{tmp_path} is a folder, not a GGUF file."
    save(model, "one.gguf")
    assert "one.gguf" in refusal(tmp_path).hint
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is a device or pipe" in refusal(tmp_path / "pipe.gguf").title


def test_a_file_without_permission(model: RawModel, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "permission denied" in refusal(path).title


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"Hello", "is not a GGUF file: it starts with 'Hello'"),
        (b"Hello\nworld, this is a longer text file", "it starts with 'Hello'"),
        (b"\x1b]0;owned\x07 and more", r"it starts with '\x1b]0;owned\x07"),
        (b"\x89PNG\r\n\x1a\n\xff\xff", r"it starts with b'\x89PNG"),
        (b"GG", "is cut short after 2 bytes"),
        (b"GGUF\3\0\0\0", "is cut short after 8 bytes"),
        (b"GGUF\0\0\0\3" + bytes(32), "is a big-endian GGUF file"),
        (b"GGUF\1\0\0\0" + bytes(32), "version 1, which llama.cpp no longer reads"),
        (b"GGUF\x09\0\0\0" + bytes(32), "version 9, newer than"),
        (b"tjgg\3\0\0\0" + bytes(32), "is an old GGML file"),
        (b"lmgg" + bytes(32), "is an old GGML file"),
        (b"PK\3\4" + bytes(32), "is a zip or PyTorch file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "is a web page"),
    ],
)
def test_files_that_are_something_else(content: bytes, words: str, save: Save) -> None:
    assert words in refusal(save(content)).title


def test_damage_that_hangs_others_and_bytes_behind_the_weights_are_refused(save: Save, model: RawModel) -> None:
    content = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    content += (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little") + (4).to_bytes(4, "little")
    content += (2**63 - 1).to_bytes(8, "little")
    assert len(content) == 49 and "'k' claims 9,223,372,036,854,775,807 entries" in refusal(save(content)).title
    path = save(model)
    os.truncate(path, path.stat().st_size + (16 << 20))
    assert read_header(path).architecture == "llama"
    os.truncate(path, 50 << 30)  # a hole, which llama.cpp would map and read
    assert "bytes follow its weights" in refusal(path).title


def test_a_download_that_stopped_early(model: RawModel, save: Save) -> None:
    content = model.bytes()
    start = len(content) - len(model.data)
    title = refusal(save(content[:-50])).title
    assert f"the header announces {len(model.data)} bytes of weights but the file ends after" in title
    assert "ends after 362" in title
    for length in range(24, start, 7):
        assert "is cut short" in refusal(save(content[:length])).title


Bend = Callable[["RawModel"], Any]
BENDS: dict[str, Bend] = {
    "'a' stands there twice": lambda m: m.number("a", 1).number("b", 1),
    "is not printable ASCII": lambda m: m.number("evil\x1b[2J", 1),
    "'x.flag' is neither true nor false": lambda m: m.pairs.update({"x.flag": (7, b"\2")}),
    "'x.flags' holds values": lambda m: m.array("x.flags", 7, [1, 0, 3]),
    "has the unknown type 77": lambda m: m.pairs.update({"x": (77, b"")}),
    "is a list of the unsupported type 9": lambda m: m.pairs.update({"x": (9, (9).to_bytes(4, "little") + bytes(8))}),
    "'general.name' is not UTF-8": lambda m: m.text("general.name", b"\xff\xfe"),
    "entry 1 of 'x' is not UTF-8": lambda m: m.array("x", 8, ["fine", b"\xff"]),
    "entry 0 of 'x' claims": lambda m: m.array("x", 8, ["y" * 70_000]),
    "does not name the architecture": lambda m: m.drop("general.architecture"),
    "its alignment '33'": lambda m: m.number("general.alignment", 33),
    "'llama.block_count' is '0'": lambda m: m.number("llama.block_count", 0),
    "'llama.block_count' is '513'": lambda m: m.number("llama.block_count", 513),
    "'llama.block_count' is 'many'": lambda m: m.text("llama.block_count", "many"),
    "'llama.embedding_length' is '4294967295'": lambda m: m.number("llama.embedding_length", 2**32 - 1),
    "'llama.context_length' is '0'": lambda m: m.number("llama.context_length", 0),
    "'llama.attention.head_count' is '0'": lambda m: m.number("llama.attention.head_count", 0),
    "head_count_kv' holds numbers": lambda m: m.array("llama.attention.head_count_kv", U32, [1, 2000]),
    "'llama.nextn_predict_layers' is '3'": lambda m: m.number("llama.nextn_predict_layers", 3),
    "epsilon' is 'nan'": lambda m: m.real("llama.attention.layer_norm_rms_epsilon", float("nan")),
    "it uses 0 of 8 experts": lambda m: m.number("llama.expert_count", 8).number("llama.expert_used_count", 0),
    "it uses 9 of 8 experts": lambda m: m.number("llama.expert_count", 8).number("llama.expert_used_count", 9),
    "is a list of an unsupported kind": lambda m: m.array("llama.rope.dimension_sections", 0, [1, 2]),
    "its tokenizer 'abacus' is not known": lambda m: m.text("tokenizer.ggml.model", "abacus"),
    "a bert tokenizer does not go with": lambda m: m.text("tokenizer.ggml.model", "bert"),
    "a tokenizer without tokens": lambda m: m.drop("tokenizer.ggml.tokens"),
    "its tokens are not a list of texts": lambda m: m.array("tokenizer.ggml.tokens", U32, [1, 2]),
    "it has 0 tokens": lambda m: m.array("tokenizer.ggml.tokens", 8, []),
    "tokens 5 and 7 are both 'x'": lambda m: m.vocabulary(["a", "b", "c", "d", "e", "x", "y", "x", "z", "w"]),
    r"tokens 0 and 1 are both 'a\x00c'": lambda m: m.vocabulary(["a\0b", "a\0c", *"defghijk"]),
    "byte token 3 is '<0x-1>'": lambda m: m.vocabulary([*"abc", "<0x-1>", *"efghij"], [1, 1, 1, 6, 1, 1, 1, 1, 1, 1]),
    "scores' has 9 entries for 10": lambda m: m.array("tokenizer.ggml.scores", F32, [0.0] * 9),
    "token_type' is not a list": lambda m: m.array("tokenizer.ggml.token_type", 0, [1] * 10),
    "'tokenizer.ggml.eot_token_id' is '10'": lambda m: m.number("tokenizer.ggml.eot_token_id", 10),
    "its merges are not a list of texts": lambda m: m.array("tokenizer.ggml.merges", U32, [1]),
    "not a list of bytes": lambda m: m.array("tokenizer.ggml.precompiled_charsmap", U32, [4, 0, 0, 0]),
    "charsmap' is shorter": lambda m: m.array("tokenizer.ggml.precompiled_charsmap", 0, [255, 255, 0, 0, 1]),
    "its chat template does not compile": lambda m: m.text("tokenizer.chat_template", "{% for %}"),
    "its chat template is longer": lambda m: m.text("tokenizer.chat_template", "x" * 300_000),
    "its chat template is not a text": lambda m: m.number("tokenizer.chat_template", 1),
    "claims 0 dimensions": lambda m: m.tensors.append(("t", (), 0, 0)),
    "claims 5 dimensions": lambda m: m.tensors.append(("t", (1,) * 5, 0, 0)),
    "claims the shape (0,)": lambda m: m.tensors.append(("t", (0,), 0, 0)),
    "claims the shape (4294967296, 4294967296)": lambda m: m.tensors.append(("t", (2**32, 2**32), 0, 0)),
    "tensor 't' has type 99": lambda m: m.tensors.append(("t", (1,), 99, 0)),
    "tensor 't' has type 4,": lambda m: m.tensors.append(("t", (1,), 4, 0)),
    "no whole number of blocks": lambda m: m.tensors.append(("t", (33,), 8, 0)),
    "tensor 't0.weight' stands there twice": lambda m: m.tensors.append(("t0.weight", (1,), 0, 0)),
    "a tensor name is 64 bytes long": lambda m: m.tensors.append(("t" * 64, (1,), 0, 0)),
    "does not follow the one before": lambda m: m.tensors.append(("t", (1,), 0, 0)),
    "does not say which part": lambda m: m.number("split.count", 3, 2).number("split.no", 3, 2),
}


@pytest.mark.parametrize("words", BENDS)
def test_damaged_headers(words: str, model: RawModel, save: Save) -> None:
    BENDS[words](model)
    content = model.bytes().replace(b"\1\0\0\0\0\0\0\0b", b"\1\0\0\0\0\0\0\0a") if "'a' stands" in words else model
    title = refusal(save(content)).title
    assert words in title and ".." not in title


def test_rules_leave_room_for_real_models(model: RawModel, save: Save) -> None:
    model.array("llama.attention.head_count_kv", U32, [0, 1])  # hybrid models
    model.number("tokenizer.ggml.seperator_token_id", 2**32 - 1)  # "none", as converters write it
    model.array("tokenizer.ggml.tokens", 8, ["", "", *"abcdefgh"])  # llama.cpp names empty tokens itself
    model.array("tokenizer.ggml.token_type", 5, [1] * 10)
    assert read_header(save(model)).n_vocab == 10
    model.drop("tokenizer.ggml.tokens").text("tokenizer.ggml.model", "none")
    assert read_header(save(model)).n_vocab == 10


def test_a_state_space_model_has_no_heads(model: RawModel, save: Save) -> None:
    model.text("general.architecture", "mamba").number("mamba.attention.head_count", 0)
    assert "head_count' is '0'" in refusal(save(model)).title
    assert read_header(save(model.number("mamba.ssm.state_size", 16))).architecture == "mamba"


def test_a_vocabulary_of_150_000_tokens_is_read(model: RawModel, save: Save) -> None:
    tokens = [f"token {n}" for n in range(150_000)]
    model.text("tokenizer.ggml.model", "gpt2").vocabulary(tokens).drop("tokenizer.ggml.scores")
    model.array("tokenizer.ggml.merges", 8, [f"{n} {n}" for n in range(150_000)])
    assert read_header(save(model)).tokens[149_999] == "token 149999"


_NAME = "_Z13llm_arch_name8llm_arch"
_KEEPS = "_Z29llm_arch_supports_rs_rollbackRK8llm_arch"
_RECURRENT = ("_Z21llm_arch_is_recurrentRK8llm_arch", "_Z18llm_arch_is_hybridRK8llm_arch")


@pytest.mark.skipif(not hasattr(C._lib, _NAME), reason="this build exports no C++ names")
def test_the_lists_are_those_of_llama_cpp() -> None:
    name_of, keeps, *recurrent = (getattr(C._lib, name) for name in (_NAME, _KEEPS, *_RECURRENT))
    name_of.restype = ctypes.c_char_p
    for call in (keeps, *recurrent):
        call.restype = ctypes.c_bool
    rolls_back, no_rollback, number = set[str](), set[str](), 0
    while (name := name_of(number)) and name != b"unknown" and number < 1000:
        architecture: Any = ctypes.c_int(number)
        if keeps(ctypes.byref(architecture)):
            rolls_back.add(name.decode())
        elif any(call(ctypes.byref(architecture)) for call in recurrent):
            no_rollback.add(name.decode())
        number += 1
    assert number > 100
    assert frozenset(rolls_back) == ROLLS_BACK
    assert frozenset(no_rollback) == NO_ROLLBACK
