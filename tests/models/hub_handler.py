"""How the tests' own hub answers: its API, its redirects, and large files with every fault that a network has."""

import contextlib
import gzip
import hashlib
import re
import socket
import struct
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from tests.models.hub_server import HubServer

Kind = Literal[
    "corrupt", "short", "long", "reset", "stall", "no range", "416", "500", "expired", "wrong range", "gzip", "changed"
]
FAULTS: Final[tuple[Kind, ...]] = get_args(Kind)
ALWAYS: Final = 1 << 30
_BLOCK: Final = 4096


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
    id: str
    files: dict[str, bytes]
    gated: Literal["auto", "manual", False] = False
    facts: dict[str, Any] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        digest = hashlib.sha1(self.id.encode())
        for name, content in sorted(self.files.items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host: Literal["hub", "store"]
    seen: Seen
    era: int

    @property
    def hub(self) -> "HubServer":
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def log_message(self, format: str, *args: object) -> None:
        """Tests read ``seen``."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        wanted = (int(match[1]), int(match[2]) + 1 if match[2] else 1 << 62) if match else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.era = self.hub.era
        self.seen = Seen(self.host, self.command, self.path, headers, parts.netloc, wanted)
        self.hub.seen.append(self.seen)
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.serve(unquote(parts.path), {key: values for key, values in parse_qs(parts.query).items()})

    def serve(self, path: str, query: dict[str, list[str]]) -> None:
        raise NotImplementedError

    def head(self, status: int, headers: dict[str, str], length: int | None) -> None:
        self.seen.status.append(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def small(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.head(status, {name.replace("_", "-"): value for name, value in headers.items()}, len(body))
        if self.command == "GET":
            self.wfile.write(body)
            self.seen.sent[0] += len(body)

    @property
    def token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")


class HubHandler(Handler):
    host = "hub"

    def serve(self, path: str, query: dict[str, list[str]]) -> None:
        if self.hub.refuse:
            status, headers = self.hub.refuse
            self.small(status, b"refused", **{name.replace("-", "_"): value for name, value in headers.items()})
        elif path == "/api/models":
            link = {"Link": f'<{self.hub.next_page}>; rel="next"'} if self.hub.next_page else {}
            self.small(200, self.hub.dumps(self.found(query)), Content_Type="application/json", **link)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?", path):
            repo = self.hub.repos.get(match[1])
            if repo is None:
                self.small(404 if self.token else 401, X_Error_Code="RepoNotFound")
            elif match[2] not in (None, "main", repo.commit):
                self.small(404, X_Error_Code="RevisionNotFound")
            else:
                told = self.told(repo, query.get("expand"), "blobs" in query)
                self.small(200, self.hub.dumps(told), Content_Type="application/json")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(match[1], match[2], match[3])
        else:
            self.small(404)

    def found(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        words = query.get("search", [""])[0].lower().split()
        author = query.get("author", [""])[0]
        repos = [
            repo
            for repo in self.hub.repos.values()
            if all(word in repo.id.lower() for word in words) and repo.id.startswith(author)
        ]
        rows = [self.told(repo, query.get("expand"), False) for repo in repos]
        key = query.get("sort", ["id"])[0]
        rows.sort(key=lambda row: row.get(key) or self.hub.repos[row["id"]].facts.get(key) or 0, reverse=True)
        return rows[: int(query.get("limit", ["1000"])[0])]

    def told(self, repo: Repo, expand: list[str] | None, blobs: bool) -> dict[str, Any]:
        names = expand or ["downloads", "likes", "gated", "lastModified", "tags", "sha"]
        facts = {"downloads": 0, "likes": 0, "gated": repo.gated, "tags": ["gguf"], "sha": repo.commit, **repo.facts}
        out: dict[str, Any] = {"id": repo.id, "modelId": repo.id, **{key: facts[key] for key in names if key in facts}}
        if expand is None:
            out["siblings"] = [self.sibling(repo, name, blobs) for name in repo.files]
        return out

    def sibling(self, repo: Repo, name: str, blobs: bool) -> dict[str, Any]:
        content = repo.files[name]
        if not blobs:
            return {"rfilename": name}
        row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
        if name not in repo.plain:
            digest = hashlib.sha256(content).hexdigest()
            row["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return row

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            self.small(404 if self.token else 401, X_Error_Code="RepoNotFound")
        elif repo.gated and self.token not in self.hub.accepted:
            self.small(403 if self.token else 401, X_Error_Code="GatedRepo")
        elif name not in repo.files:
            self.small(404, X_Error_Code="EntryNotFound", X_Repo_Commit=repo.commit)
        elif name in repo.plain:
            etag = '"' + hashlib.sha1(repo.files[name]).hexdigest() + '"'
            self.small(200, repo.files[name], ETag=etag, X_Repo_Commit=repo.commit, Content_Type="text/plain")
        else:
            content = repo.files[name]
            digest = hashlib.sha256(content).hexdigest()
            place = f"{self.hub.store}/{'hop' if self.hub.extra_hop else 'blob'}/{digest}?signature=secret"
            facts = {
                "ETag": f'"{digest}"',
                "X_Linked_Etag": f'"{digest}"',
                "X_Linked_Size": str(len(content)),
                "X_Repo_Commit": repo.commit,
            }
            told = {} if self.hub.silent else facts
            self.small(302, b"Found. Redirecting", Location=place, Accept_Ranges="bytes", **told)


class StoreHandler(Handler):
    """The second host: large files by their sha256, with ranges and faults."""

    host = "store"

    def serve(self, path: str, query: dict[str, list[str]]) -> None:
        kind, _, digest = path.strip("/").partition("/")
        content = self.hub.content(digest)
        if kind == "hop":
            self.small(302, Location=f"/blob/{digest}?signature=secret")
        elif content is None or kind != "blob" or "signature" not in query:
            self.small(403)  # as signed addresses do, once they are void
        else:
            self.blob(digest, content)

    def blob(self, digest: str, content: bytes) -> None:
        size = len(content)
        start, end = self.seen.range or (0, size)
        end = min(end, size)
        fault = self.hub.strike(start, end) if self.command == "GET" else None
        kind = fault.kind if fault else None
        etag = f'"store-{digest[:8]}"'
        if kind == "500":
            self.small(500)
        elif kind == "expired":
            self.small(403)
        elif kind == "416" or start >= size:
            self.small(416, Content_Range=f"bytes */{size}")
        elif kind == "gzip":
            body = gzip.compress(content[start:end])
            self.small(206, body, Content_Encoding="gzip", Content_Range=f"bytes {start}-{end - 1}/{size}", ETag=etag)
        else:
            self.range(content, start, end, etag, fault)

    def range(self, content: bytes, start: int, end: int, etag: str, fault: Fault | None) -> None:
        kind, at = (fault.kind, fault.at) if fault else (None, 0)
        size = len(content)
        if kind == "changed":
            content, etag = bytes(byte ^ 0xFF for byte in content), '"changed"'
        valid = self.headers.get("If-Range", etag) == etag
        if self.seen.range is None or kind == "no range" or not valid:
            start, end = 0, size
            self.head(200, {"ETag": etag}, size)
        else:
            said = (start, end, size)
            if kind == "wrong range":
                said = (start - 7, end - 7, size) if start >= 7 else (start, end, size + 7)
            headers = {"ETag": etag, "Content-Range": f"bytes {said[0]}-{said[1] - 1}/{said[2]}"}
            untold = kind == "long" or (kind == "short" and at % 2)  # then only the end of the connection ends it
            self.head(206, headers, None if untold else end - start)
        if self.command == "HEAD":
            return
        body = content[start:end]
        if kind == "corrupt":
            body = body[: at - start] + bytes([body[at - start] ^ 1]) + body[at - start + 1 :]
        if kind in ("short", "reset", "stall"):
            body = body[: at - start]
        self.flow(body)
        if kind == "long":
            self.flow(b"more than was asked for" * 40)
        if kind in ("short", "long"):
            self.close_connection = True
        elif kind == "reset":
            self.reset()
        elif kind == "stall":
            self.hub.closed.wait()

    def flow(self, body: bytes) -> None:
        position = 0
        while position < len(body):
            count = 0 if self.gone() else self.hub.allowance(min(_BLOCK, len(body) - position), self.era)
            if not count:
                self.close_connection = True
                return
            self.wfile.write(body[position : position + count])
            position += count
            self.seen.sent[0] += count

    def gone(self) -> bool:
        """Whether the client has hung up: what it will never read must not count as sent."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)

    def reset(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
