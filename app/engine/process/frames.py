"""Reads and writes the frames of ``slipstream.app.protocol``; checks every field of what it reads."""

import json
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import IO, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from slipstream.app.protocol.events import Frame
from slipstream.models.errors import SlipstreamError

_KINDS: Final = {kind.__name__: kind for kind in get_args(Frame)}
_hints = cache(get_type_hints)
FRAME_LIMIT: Final = 64 << 20  # maximum bytes of a frame; allows a pasted book, and rejects most corrupt lengths


class ProtocolError(Exception):
    """A frame that cannot be understood."""


def write_frame(pipe: IO[bytes], message: Frame) -> None:
    """Writes one message and flushes it; raises ``SlipstreamError`` if it exceeds ``FRAME_LIMIT``."""
    body = json.dumps({"kind": type(message).__name__} | _fields(message), default=_fields).encode()
    if len(body) > FRAME_LIMIT:
        raise SlipstreamError(
            f"this chat is too large for the engine: {len(body) >> 20:,} MB, and {FRAME_LIMIT >> 20} are the most.",
            "Begin a new chat, or send the text in parts.",
        )
    pipe.write(len(body).to_bytes(4, "little") + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> Frame | None:
    """Reads one message; None if the pipe was closed between two frames. Raises ``ProtocolError`` if it is none."""
    head = pipe.read(4)
    if not head:
        return None
    size = int.from_bytes(head, "little")
    if len(head) < 4 or size > FRAME_LIMIT:
        raise ProtocolError(f"a frame of {size} bytes")
    body = pipe.read(size)
    if len(body) < size:
        raise ProtocolError("a frame was cut short")
    try:
        values = json.loads(body)
        kind = _KINDS[values.pop("kind")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"not a message: {error!r}") from error
    message: Frame = built(kind, values)
    return message


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a message without the deep copy of ``asdict``, which took longer than the JSON."""
    return {name: getattr(value, name) for name in type(value).__slots__}


def built(kind: Any, value: Any) -> Any:
    """Builds a value of a type from JSON, field by field; raises ``ProtocolError`` if the JSON does not match."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ProtocolError(f"{kind} from {type(value).__name__}")
        hints = _hints(kind)  # type: ignore[arg-type]
        required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
        if not value.keys() <= hints.keys() or not required <= value.keys():
            raise ProtocolError(f"{kind} with the fields {sorted(value)}")
        return kind(**{name: built(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if origin in (list, dict):
        if not isinstance(value, origin):
            raise ProtocolError(f"{kind} from {type(value).__name__}")
        if origin is list:
            return [built(arguments[0], item) for item in value]
        return {key: built(arguments[1], item) for key, item in value.items()}
    if origin is tuple and arguments[1:] == (...,):
        return tuple(built(types.GenericAlias(list, arguments[:1]), value))
    if origin in (Union, types.UnionType):
        return None if value is None else built(next(a for a in arguments if a is not type(None)), value)
    if origin is Literal:
        if value not in arguments:
            raise ProtocolError(f"{value!r} is none of {arguments}")
        return value
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{kind} from {type(value).__name__}")
    return value
