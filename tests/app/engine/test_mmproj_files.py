"""Damaged mmproj files: the model is loaded without one, an image gets one clear error, and nothing dies."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
import pytest
from tests.app.engine.test_images import about
from tests.models.kinds import WIDTH, add_all, finish, write_kind
from tests.models.tiny_mmproj import write_mmproj, write_picture

from slipstream.app.engine.load import load
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import SlipstreamError

Bend = Callable[[dict[str, Any], dict[str, Any]], object]
BENDS: Final[MappingProxyType[str, Bend]] = MappingProxyType(
    {
        "no blocks": lambda keys, _: keys.update({"clip.vision.block_count": 0}),
        "too many blocks": lambda keys, _: keys.update({"clip.vision.block_count": 9}),
        "no heads": lambda keys, _: keys.update({"clip.vision.attention.head_count": 0}),
        "odd heads": lambda keys, _: keys.update({"clip.vision.attention.head_count": 5}),
        "no patches": lambda keys, _: keys.update({"clip.vision.patch_size": 0}),
        "huge patches": lambda keys, _: keys.update({"clip.vision.patch_size": 1 << 30}),
        "huge image": lambda keys, _: keys.update({"clip.vision.image_size": 1 << 20}),
        "no image": lambda keys, _: keys.update({"clip.vision.image_size": 0}),
        "other width": lambda keys, _: keys.update({"clip.vision.embedding_length": 48}),
        "no mean": lambda keys, _: keys.pop("clip.vision.image_mean"),
        "no kind": lambda keys, _: keys.pop("clip.projector_type"),
        "unknown kind": lambda keys, _: keys.update({"clip.projector_type": "crystal"}),
        "sound": lambda keys, _: keys.update({"clip.has_vision_encoder": False}),
        "no norm": lambda _, weights: weights.pop("v.blk.0.ln1.weight"),
        "no projection": lambda _, weights: weights.pop("mm.2.weight"),
        "thin projection": lambda _, weights: weights.update({"mm.2.weight": np.zeros((16, WIDTH), np.float32)}),
        "wrong attention": lambda _, weights: weights.update({"v.blk.0.attn_q.weight": np.zeros((24, 24), np.float32)}),
        "few places": lambda _, weights: weights.update({"v.position_embd.weight": np.zeros((3, 32), np.float32)}),
        "wrong patches": lambda _, weights: weights.update(
            {"v.patch_embd.weight": np.zeros((32, 3, 4, 4), np.float32)}
        ),
    }
)

HARMLESS: Final = ("no blocks", "no norm", "wrong patches")  # llama.cpp reads them as another projector


def rewrite(path: Path, bend: Bend) -> None:
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith("clip.")}
    weights = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    bend(keys, weights)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "clip")
    add_all(writer, "", keys)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    finish(writer)
    path.with_suffix(".new").replace(path)


def refusal(folder: Path, mmproj: Path) -> SlipstreamError | None:
    """What an image gets; the model must reply to text before and after."""
    model = write_kind(folder / "model.gguf", "llama")
    picture = about(write_picture(folder / "cat.png"), text="the a of")
    session, loaded = load(Load(str(model), mmproj=str(mmproj), probed=str(folder / "probed.json")), lambda _: None)
    with closing(session):

        def reply(message: Message) -> None:
            request = Generate(1, [message], Sampling(0.0), max_tokens=4)
            assert session.reply(request, lambda _: None, lambda: False).reason

        try:
            reply(picture)
        except SlipstreamError as error:
            assert not loaded.images or "image" in error.title
            reply(Message("user", "the a of"))
            return error
    return None


@pytest.mark.parametrize("name", BENDS)
def test_a_bent_mmproj_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)
    rewrite(mmproj, BENDS[name])
    error = refusal(tmp_path, mmproj)
    if error is None:
        assert name in HARMLESS, "it is used as if it were whole"
        return
    assert "mmproj.gguf" in error.title and error.hint and "\n" not in str(error)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.95])
def test_an_mmproj_file_that_was_cut_short_is_one_clear_error(tmp_path: Path, part: float) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)
    raw = mmproj.read_bytes()
    mmproj.write_bytes(raw[: int(part * len(raw))])
    error = refusal(tmp_path, mmproj)
    assert error and "mmproj.gguf" in error.title and error.hint


def test_other_files_are_no_mmproj_files_and_a_whole_one_serves(tmp_path: Path) -> None:
    for name, make in (
        ("text.gguf", lambda path: path.write_text("Dear reader")),
        ("model2.gguf", lambda path: write_kind(path, "llama")),
        ("wide.gguf", lambda path: write_mmproj(path, "mlp", 2 * WIDTH)),
    ):
        make(tmp_path / name)
        error = refusal(tmp_path, tmp_path / name)
        assert error and name in error.title and error.hint, name
    assert refusal(tmp_path, write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)) is None
