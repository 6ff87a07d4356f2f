from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.app.engine.text import TextStream
from slipstream.app.protocol.events import Piece


def stream(chunks: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[list[Piece]], TextStream]:
    text = TextStream(stops)
    return [*(text.feed(chunk, "plain") for chunk in chunks), text.finish()], text


def joined(pieces: Sequence[Sequence[Piece]]) -> str:
    return "".join(piece.text for some in pieces for piece in some)


@pytest.mark.parametrize("text", ["naïve", "日本語", "👩‍🚀 ok", "a\u0301b"])
def test_a_character_is_never_split(text: str) -> None:
    pieces, _ = stream([bytes([byte]) for byte in text.encode()])
    assert joined(pieces) == text
    assert all("\ufffd" not in piece.text for some in pieces for piece in some)


def test_unfinished_characters_and_stop_strings_come_out_at_the_end() -> None:
    pieces, text = stream([b"ab", "é".encode()[:1]])
    assert joined(pieces[:2]) == "ab" and joined(pieces) == text.text == "ab\ufffd"
    pieces, _ = stream([b"a <e", b"nd of story"], ["<end>"])
    assert joined(pieces[:1]) == "a " and joined(pieces) == "a <end of story"


def test_pieces_keep_their_origin_and_neighbours_join() -> None:
    text = TextStream(["zz"])
    first = text.feed(b"a", "accepted", "draft") + text.feed(b"b", "accepted", "draft") + text.feed(b"z", "recovered")
    rest = text.feed(b"y", "bonus") + text.finish()
    assert [*first, *rest] == [
        Piece("a", "accepted", "draft"),
        Piece("b", "accepted", "draft"),
        Piece("z", "recovered"),
        Piece("y", "bonus"),
    ]


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_any_split_gives_the_text_up_to_the_first_stop_string(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = stream(chunks, stops)[1].text
    assert text.startswith(whole) and not any(stop in whole for stop in stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert whole == text
    else:  # a longer stop string may end later than one that has been met inside it
        assert min(text.find(stop) for stop in stops if stop in text) <= len(whole) < min(ends)
