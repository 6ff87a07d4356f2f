"""What the tests' own hub keeps, what it saw, and what can go wrong with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal[
    "corrupt", "short", "long", "reset", "stall", "no range", "416", "500", "expired", "wrong range", "gzip", "changed"
]
FAULTS: Final[tuple[Kind, ...]] = (
    *("corrupt", "short", "long", "reset", "stall", "no range"),
    *("416", "500", "expired", "wrong range", "gzip", "changed"),
)
ALWAYS: Final = 1 << 30


@dataclass
class Fault:
    """What goes wrong with requests for the byte at ``at``, the first ``times`` of them."""

    kind: Kind
    at: int
    times: int = ALWAYS


@dataclass(frozen=True)
class Seen:
    """A request as it came in; ``sent`` counts the bytes of its body that were handed to the network."""

    host: Literal["hub", "store"]
    method: str
    path: str
    headers: dict[str, str]
    proxied: str = ""
    range: tuple[int, int] | None = None
    status: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=lambda: [0])


@dataclass
class Repo:
    """A repository; ``facts`` overrides what the API tells of it."""

    id: str
    files: dict[str, bytes]
    gated: Literal["auto", "manual", False] = False
    facts: dict[str, Any] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        """Changes with the files."""
        digest = hashlib.sha1(self.id.encode())
        for name, content in sorted(self.files.items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()
