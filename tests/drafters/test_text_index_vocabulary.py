"""Which models share an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.conftest import TOKENS, TYPES, RawModel, small_model

from slipstream.drafters.text_index import TextPiece, fingerprint, folder_of, open_index
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header


def header(tmp_path: Path, model: RawModel) -> Header:
    path = tmp_path / "model.gguf"
    path.write_bytes(model.bytes())
    return read_header(path)


def test_models_that_spell_alike_share_an_index(tmp_path: Path) -> None:
    mine = header(tmp_path, small_model())
    again = header(tmp_path, small_model().text("general.name", "Another").weights((8,)))
    ends = header(tmp_path, small_model().number("tokenizer.ggml.eos_token_id", 9).text("tokenizer.chat_template", "x"))
    assert mine.fingerprint != again.fingerprint
    assert folder_of(tmp_path, mine) == folder_of(tmp_path, again) == folder_of(tmp_path, ends)
    open_index(tmp_path / "index", mine).add([TextPiece("a", [1, 2, 3])])
    assert open_index(tmp_path / "index", again).size().tokens == 3


@pytest.mark.parametrize(
    "other",
    [
        small_model().vocabulary([*TOKENS[:-1], "<|end|>"], TYPES),
        small_model().vocabulary(TOKENS, [*TYPES[:-1], 1]),
        small_model().text("tokenizer.ggml.pre", "llama-bpe"),
        small_model().number("tokenizer.ggml.add_space_prefix", 0, 7),
        small_model().array("tokenizer.ggml.scores", 6, [0.0] * len(TOKENS)),
    ],
)
def test_another_spelling_has_an_index_of_its_own(other: RawModel, tmp_path: Path) -> None:
    mine, theirs = header(tmp_path, small_model()), header(tmp_path, other)
    assert fingerprint(mine) != fingerprint(theirs)
    root = tmp_path / "index"
    open_index(root, mine).add([TextPiece("a", [1, 2, 3])])
    assert open_index(root, theirs).empty
    assert root.stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SlipstreamError, match="cannot write the text index"):
        open_index(tmp_path / "file", header(tmp_path, small_model()))
