import io
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.app import protocol
from slipstream.app.engine.process import frames
from slipstream.app.engine.process.frames import ProtocolError, read_frame, write_frame
from slipstream.app.speed import Speed
from slipstream.models.errors import SlipstreamError

DONE = protocol.Done(3, "stop", "a", [7], 4, 4, 0, 1.5, Speed(), [[1, 1]], {"draft": {"steps": 1}})
MESSAGES: list[protocol.Frame] = [
    protocol.Load("m.gguf", "d.gguf", ["h.gguf"], "folder", "draft", 512, True),
    protocol.Generate(
        3, [protocol.Message("user", "hé\u2028\x1b"), protocol.Message("assistant", "b", [1, 2])], stop=["x"]
    ),
    protocol.Prepare([protocol.Message("user", "so f")], "draft", "a.state"),
    protocol.Stop(3),
    protocol.Watch(True),
    protocol.Quit(),
    protocol.Hello(),
    protocol.Loading(0.5),
    protocol.Loaded("n", "llama", 9, "f", "CPU", "same text", [protocol.DrafterOffer("none", True)], 12.5),
    protocol.Prefilling(3, 1, 2),
    protocol.Stepped(3, [protocol.Piece("a", "accepted", "draft")], [7], "draft", 2, 1, 0.5, Speed(acceptance=0.5)),
    protocol.Stepped(
        3,
        [],
        [7],
        "draft",
        2,
        1,
        0.5,
        Speed(),
        watched=protocol.Watched(
            [
                protocol.DraftTree(
                    4, ["a", ""], [-1, 0], [0.5, 1.0], ["x", "y"], [0], protocol.Piece("b", "bonus"), 3, 1.5
                )
            ],
            {"x": {"steps": 4}},
            {"x": [[4, 2]]},
        ),
    ),
    DONE,
    protocol.Failed("t", "h", 2, 3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_as_it_was(message: protocol.Frame) -> None:
    pipe = io.BytesIO()
    write_frame(pipe, message)
    pipe.seek(0)
    assert read_frame(pipe) == message
    assert read_frame(pipe) is None


def frame(body: object) -> io.BytesIO:
    raw = json.dumps(body).encode()
    return io.BytesIO(len(raw).to_bytes(4, "little") + raw)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"kind": "Nothing"},
        {"kind": "Stop"},
        {"kind": "Stop", "request": "1"},
        {"kind": "Stop", "request": True},
        {"kind": "Stop", "request": 1, "more": 2},
        {"kind": "Generate", "request": 1, "messages": [{"role": "user"}]},
        {"kind": "Generate", "request": 1, "messages": {}},
        {"kind": "Done", **asdict(DONE), "reason": "bored"},
    ],
)
def test_a_frame_that_is_no_message_is_refused(body: object) -> None:
    with pytest.raises(ProtocolError):
        read_frame(frame(body))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    try:
        read_frame(io.BytesIO(raw))
    except ProtocolError:
        return
    assert raw == b""


def test_a_message_that_the_other_side_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_LIMIT", 1 << 20)
    pipe = io.BytesIO()
    large = protocol.Prepare([protocol.Message("user", "\N{GRINNING FACE}" * 100_000)], "none")
    with pytest.raises(SlipstreamError, match="too large for the engine"):
        frames.write_frame(pipe, large)
    assert pipe.getvalue() == b""
