"""Which mmproj file belongs to a model, by the files beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.kinds import WIDTH, write_kind
from tests.models.tiny_mmproj import write_mmproj

from slipstream.models.library.projectors import projector_beside, projector_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_kind(tmp_path / "tiny-q8_0.gguf", "llama")


def test_the_file_of_the_model_s_width_is_taken_in_its_best_precision(model: Path) -> None:
    assert projector_beside(model) is None
    write_mmproj(model.with_name("mmproj-wide-f16.gguf"), "mlp", 2 * WIDTH)
    (model.parent / "mmproj-broken.gguf").write_bytes(b"GGUF")
    write_kind(model.with_name("mmproj-llama.gguf"), "llama")
    assert projector_beside(model) is None
    last = write_mmproj(model.with_name("tiny-mmproj-f32.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == last
    best = write_mmproj(model.with_name("tiny.mmproj-F16.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == best
    write_mmproj(model.with_name("notmmprojf16.gguf"), "mlp", WIDTH)
    assert projector_beside(model) == best
    assert projector_bytes(best) > best.stat().st_size and projector_bytes(None) == 0


def test_names_in_the_headers_tell_projectors_apart(model: Path) -> None:
    own = write_mmproj(model.with_name("mmproj-b.gguf"), "mlp", WIDTH, title="Tiny llama")
    write_mmproj(model.with_name("mmproj-a.gguf"), "mlp", WIDTH, title="Another model")
    assert projector_beside(model) == own
    write_mmproj(own, "mlp", WIDTH, title="A third model")
    assert projector_beside(model) is None, "it cannot tell which"


def test_a_folder_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert projector_beside(tmp_path / "nowhere" / "model.gguf") is None
