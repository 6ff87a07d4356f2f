import io
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.app.engine import protocol, requests
from slipstream.app.engine.frames import ProtocolError, read_frame, write_frame

DONE = protocol.Done(3, "stop", "a", [7], 4, 4, 0, 1.5, protocol.Speed(), [[1, 1]], {"draft": {"steps": 1}})
MESSAGES: list[protocol.Frame] = [
    requests.Load("m.gguf", "d.gguf", ["h.gguf"], "folder", "draft", 512, True),
    requests.Generate(
        3, [requests.Message("user", "hé\u2028\x1b"), requests.Message("assistant", "b", [1, 2])], stop=["x"]
    ),
    requests.Prepare([requests.Message("user", "so f")], "draft", "a.state"),
    requests.Stop(3),
    requests.Watch(True),
    requests.Quit(),
    protocol.Hello(),
    protocol.Loading(0.5),
    protocol.Loaded("n", "llama", 9, "f", "CPU", "same text", [protocol.DrafterOffer("none", True)], 12.5),
    protocol.Prefilling(3, 1, 2),
    protocol.Stepped(
        3, [protocol.Piece("a", "accepted", "draft")], [7], "draft", 2, 1, 0.5, protocol.Speed(acceptance=0.5)
    ),
    protocol.Stepped(
        3,
        [],
        [7],
        "draft",
        2,
        1,
        0.5,
        protocol.Speed(),
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
