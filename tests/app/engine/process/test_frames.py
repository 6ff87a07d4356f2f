import io
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.app.engine.process import frames
from slipstream.app.engine.process.frames import ProtocolError, read_frame, write_frame
from slipstream.app.protocol import events
from slipstream.app.protocol.requests import Generate, Load, Message, Prepare, Quit, Stop, Watch
from slipstream.app.speed import Speed
from slipstream.models.errors import SlipstreamError

DONE = events.Done(3, "stop", "a", [7], 4, 4, 0, 1.5, Speed(), [[1, 1]], {"draft": {"steps": 1}})
MESSAGES: list[events.Frame] = [
    Load("m.gguf", "d.gguf", ["h.gguf"], "folder", "draft", 512, "always"),
    Generate(3, [Message("user", "hé\u2028\x1b"), Message("assistant", "b", [1, 2])], stop=["x"]),
    Prepare([Message("user", "so f")], "draft", "a.state"),
    Stop(3),
    Watch(True),
    Quit(),
    events.Hello(),
    events.Loading(0.5),
    events.Loaded("n", "llama", 9, "f", "CPU", "same text", [events.DrafterOffer("none", True)], 12.5),
    events.Prefilling(3, 1, 2),
    events.Stepped(3, [events.Piece("a", "accepted", "draft")], [7], "draft", 2, 1, 0.5, Speed(acceptance=0.5)),
    events.Stepped(
        3,
        [],
        [7],
        "draft",
        2,
        1,
        0.5,
        Speed(),
        watched=events.Watched(
            [events.DraftTree(4, ["a", ""], [-1, 0], [0.5, 1.0], ["x", "y"], [0], events.Piece("b", "bonus"), 3, 1.5)],
            {"x": {"steps": 4}},
            {"x": [[4, 2]]},
        ),
    ),
    DONE,
    events.Failed("t", "h", 2, 3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_as_it_was(message: events.Frame) -> None:
    pipe = io.BytesIO()
    write_frame(pipe, message)
    pipe.seek(0)
    assert read_frame(pipe) == message and read_frame(pipe) is None


def frame(body: object) -> io.BytesIO:
    raw = json.dumps(body).encode()
    return io.BytesIO(len(raw).to_bytes(4, "little") + raw)


@pytest.mark.parametrize(
    "body",
    [
        {}, [], {"kind": "Nothing"}, {"kind": "Stop"}, {"kind": "Stop", "request": "1"},
        {"kind": "Stop", "request": True}, {"kind": "Stop", "request": 1, "more": 2},
        {"kind": "Generate", "request": 1, "messages": [{"role": "user"}]},
        {"kind": "Generate", "request": 1, "messages": {}}, {"kind": "Done", **asdict(DONE), "reason": "bored"},
    ],
)  # fmt: skip
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
    large = Prepare([Message("user", "\N{GRINNING FACE}" * 100_000)], "none")
    with pytest.raises(SlipstreamError, match="too large for the engine"):
        frames.write_frame(pipe, large)
    assert pipe.getvalue() == b""
