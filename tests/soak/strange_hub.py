"""Odd hubs, networks, variables, catalogues and kills of commands on models: the cases of the library and the hub."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.app.terminal import ROOT
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HostileHub, HubServer, raw
from tests.soak.strangers import MAIN, Found, run, wrong

REPO: Final = "acme/Tiny-GGUF"
LIMIT_S: Final = 100.0  # seconds within which every wait for the hub ends
WORDS_S: Final = 12.0  # seconds within which the host is named, the start of Python and a busy machine included
ODD_ADDRESSES: Final = (
    "://", "http://", "https://", "http:///", "hub", "ftp://hub.example", "http://a b", "http://[::1", "http://h:99999",
    "http://h:port", "http://u:p@h", "http://h?x=1", "http://h#x", "http://\u00fc.example", "http://h\x1b[31m",
    "\u202e", "http://h\\x", "http://" + "a" * 9000, "http://*", "http://%", "socks9://h", "http//h", "javascript:1",
)  # fmt: skip
ODD_PROXIES: Final = (
    "://", "http://", "http:///", "foo://h:1", "socks9://h", "http://[::1", "http://h:99999", "http://h:x",
    "http://a b", "http://\x1b[31m", "socks5://h:1", "socks4://h:1", "file:///etc/passwd", "[", "http://%%", "http://\u00fc:1",
)  # fmt: skip
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ODD_OTHERS: Final = (
    *(("HF_TOKEN", value) for value in ("a b", "hf_\u00fc", "hf_\x1b[31m", "x" * 100_000, "\u202e", "a\nb", "a\x7fb")),
    *(("SSL_CERT_FILE", value) for value in ("/nowhere.pem", "/dev/null", "/etc", "/etc/hostname", "a\nb")),
    *(("HF_HUB_DOWNLOAD_TIMEOUT", value) for value in ("x", "", "-1", "1e9", "9" * 5000, "\u00b2")),
    *(("HF_HUB_ETAG_TIMEOUT", value) for value in ("x", "-1", "1.5")),
    *(("NO_PROXY", value) for value in ("://", "[::", "*", ",,,", "\u00fc", "http://", "a b", "[::1]:x", "%")),
    *(("HF_HOME", value) for value in ("/dev/null", "/nowhere", "a\nb", "\u202e")),
    *(("HF_TOKEN_PATH", value) for value in ("/etc", "/dev/null", "/nowhere/x")),
    *(("HF_HUB_OFFLINE", value) for value in ("maybe", "2", " 1")),
    *(("SSL_CERT_DIR", value) for value in ("/nowhere", "/dev/null")),
)
DEEP: Final = 20_000
CATALOGUES: Final[dict[str, bytes]] = {
    "dotted": b"a." * DEEP + b"b = 1", "quoted": b'"a" . ' * DEEP + b"b = 1", "header": b"[" + b"a." * DEEP + b"b]",
    "tables": b"[[pair]]\n" + b"[pair." + b"a." * DEEP + b"b]", "arrays": b"pair = " + b"[" * 150 + b"]" * 150,
    "inline": b"pair = " + b"{a=" * 150 + b"1" + b"}" * 150, "unclosed": b"pair = " + b"[" * DEEP,
    "keys": b"".join(b"key%d = 1\n" % number for number in range(60_000)), "pairs": b"[[pair]]\n" * 100_000,
    "digits": b"[[pair]]\nbytes = " + b"9" * 100_000, "word": b"a" * 1_000_000, "quotes": b'"' * 1_000_000,
    "large": b"#" * 3_000_000, "bytes": bytes(range(256)) * 100, "empty": b"", "bom": b"\xef\xbb\xbf[[pair]]\n",
    "same": b"a = 1\na = 2\n", "lines": b"\n" * 1_000_000, "date": b"[[pair]]\nid = 1979-05-27T07:32:00Z",
    "surrogate": b'[[pair]]\nid = "\\ud800"',
}  # fmt: skip
RAW: Final = ("\x1b[31m", "\x9b31m", "\u202e", "\u2066", "\x07", "\r", "\ufeff", "\u200f")


def quiet(home: Path, hub: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command on a hub, without the variables of this machine's own network."""
    own = dict.fromkeys((*PROXIES, "NO_PROXY", "no_proxy", "HF_TOKEN"), "")
    return run(home, *words, **{**own, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", **more})


def one_line(done: subprocess.CompletedProcess[str], *names: str) -> str | None:
    """What is wrong with an error that has to be one line that names one of the variables."""
    if fault := wrong(done, (0, 1)):
        return fault
    lines = [line for line in done.stderr.splitlines() if "waiting for" not in line and "measuring" not in line]
    if done.returncode and (len(lines) != 1 or not any(name in lines[0] for name in names)):
        return f"not one line with {names}: {done.stderr[-300:]}"
    return next((f"{mark!r} is printed raw" for mark in RAW if mark in done.stdout + done.stderr), None)


def variables(folder: Path, _: random.Random) -> Found:
    """Odd variables of the hub and the network: one line with the name and the cure; offline they do not matter."""
    odd = [("HF_ENDPOINT", value) for value in (" ", *ODD_ADDRESSES)]
    odd += [(name, value) for number, value in enumerate(ODD_PROXIES) for name in [PROXIES[number % len(PROXIES)]]]
    odd += ODD_OTHERS
    with HubServer() as hub:
        hub.add(REPO, {"Tiny-F32.gguf": tiny_gguf()})
        for number, (name, value) in enumerate(odd):
            done = quiet(folder / "home", hub.endpoint, "models", "search", "tiny", **{name: value})
            near = "NO_PROXY" if name == "NO_PROXY" else "token" if name.startswith("HF_TOKEN") else name
            fault = one_line(done, name, name.lower(), near, "cannot reach", "127.0.0.1", "proxy")
            yield fault and f"{name}={value[:40]!r}: {fault}"
            if number % 6 == 0:
                offline = quiet(folder / "home", hub.endpoint, "models", "list", **{name: value, "HF_HUB_OFFLINE": "1"})
                fault = wrong(offline)
                yield fault and f"offline, {name}={value[:40]!r}: {fault}"


@contextlib.contextmanager
def never_answers() -> Iterator[str]:
    """A port that takes connections and says nothing, as a stalled link does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def started(home: Path, command: Sequence[str], **more: str) -> subprocess.Popen[str]:
    own = dict.fromkeys((*PROXIES, "NO_PROXY", "no_proxy", "HF_TOKEN"), "")
    variables = {**os.environ, **own, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**variables, **more}, cwd=ROOT,
    )  # fmt: skip


def timed(home: Path, hub: str, *words: str) -> tuple[int, float, float | None]:
    """Runs a command; returns its code, its seconds, and the seconds until the host was named."""
    began, named = time.monotonic(), None
    with started(home, words, HF_ENDPOINT=hub) as process:
        timer = threading.Timer(LIMIT_S * 2, process.kill)
        timer.start()
        assert process.stderr
        for line in process.stderr:
            if "waiting for 127.0.0.1" in line and named is None:
                named = time.monotonic() - began
        code = process.wait()
        timer.cancel()
    return code, time.monotonic() - began, named


def waits(folder: Path, _: random.Random) -> Found:
    """Hubs that say nothing, too little, or the same for ever: words soon, and an end in one line."""
    head = b"HTTP/1.1 200 X\r\n\r\n"
    silent: dict[str, Callable[[HostileHub], Callable[[socket.socket], None]]] = {
        "silence": lambda hub: lambda _: (hub.ended.wait() and None) or None,
        "status 100": lambda hub: hub.dribble(b"HTTP/1.1 100 Continue\r\n\r\n", 0.2),
        "a head that dribbles": lambda hub: hub.dribble(b"HTTP/1.1 200 X\r\nX-A: ", 0.5),
        "a body that dribbles": lambda hub: hub.dribble(head + b"[", 0.5),
        "a body that stops": lambda hub: sent(head + b"[" * 100, hub),
    }
    for name, answer in silent.items():
        for command in (("models", "search", "tiny"), ("models", "pull", "a/b")):
            with HostileHub() as hub:
                hub.api = answer(hub)
                yield ended(f"{name}, {command[1]}", *timed(folder / "home", hub.endpoint, *command))
    for command in (("models", "search", "tiny"), ("models", "pull", "a/b")):
        with never_answers() as address:
            yield ended(f"a stalled link, {command[1]}", *timed(folder / "home", address, *command))
    for count in (0, 50_000):
        with HubServer() as server:
            server.add(REPO, {"Tiny-F32.gguf": tiny_gguf()})
            server.hold_after(count)
            home = folder / f"stalled{count}"
            yield ended(f"a file that stalls at {count}", *timed(home, server.endpoint, "models", "pull", REPO))
    with HostileHub() as hub:
        hub.api = raw(503)
        yield ended("failures", *timed(folder / "home", hub.endpoint, "models", "search", "x"), words=False)
        hub.api = forever(raw(302, Location="/api/models/a/b"), hub)
        yield ended("circles", *timed(folder / "home", hub.endpoint, "models", "pull", "a/b"), words=False)


def sent(head: bytes, hub: HostileHub) -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        hub.ended.wait()

    return send


def forever(block: bytes, hub: HostileHub) -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        while not hub.ended.wait(0.01):
            connection.sendall(block)

    return send


def ended(name: str, code: int, seconds: float, named: float | None, words: bool = True) -> str | None:
    if code != 1 or seconds > LIMIT_S:
        return f"{name}: exit code {code} after {seconds:.0f} s"
    late = words and (named is None or named > WORDS_S)
    return f"{name}: the host is named after {named} s of {seconds:.0f} s" if late else None


def killed(home: Path, command: Sequence[str], seconds: float, **more: str) -> None:
    with started(home, command, **more) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGKILL)


def library(home: Path) -> tuple[list[str], list[str], list[str]]:
    """The names of usable models, those of broken ones, and files that belong to none of them."""
    listed = json.loads(run(home, "models", "list", "--json").stdout)
    ours = [model for model in listed["models"] if model["origin"] == "ours"]
    known = {Path(file) for model in ours for file in model["files"]}
    known |= {path.with_name(f".{path.name}.json") for path in known}
    files = [path for path in (home / "models").rglob("*") if path.is_file() and path not in known]
    stray = [path.name for path in files if path.name not in (".facts.json", ".facts.lock", ".lock", ".packages.json")]
    good, bad = [one["name"] for one in ours if not one["problem"]], [one["name"] for one in ours if one["problem"]]
    return good, bad, stray + [str(one["files"]) for one in listed["unfinished"]]


def kills(folder: Path, chance: random.Random) -> Found:
    """Kills of `models pull` and `models import` at any moment: the same command again ends well, with one model."""
    parts = split_gguf("Tiny-BF16", 3)
    source = folder / "source"
    source.mkdir()
    for name, content in parts.items():
        (source / name).write_bytes(content)
    with HubServer() as hub:
        hub.add(REPO, parts)
        more = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        commands = (
            ["models", "pull", REPO],
            ["models", "import", str(source / min(parts)), "--copy"],
            ["models", "import", str(source / min(parts))],
        )
        for number in range(12):
            home, command = folder / f"home{number}", commands[number % len(commands)]
            for _ in range(chance.randint(1, 3)):
                killed(home, command, chance.uniform(0.5, 3.0), **more)
            done = run(home, *command, **more)
            there = " already" in done.stderr
            good, bad, stray = library(home)
            what = wrong(done, (0, 2) if there else (0,))
            if not what and (len(good) != 1 or bad or stray):
                what = f"good {good}, broken {bad}, stray {stray}"
            yield what and f"{command[:2]}: {what}"


def together(folder: Path, _: random.Random) -> Found:
    """Imports, pulls and removals at once: nothing is lost, and nothing is there twice."""
    with HubServer() as hub:
        more = {"HF_ENDPOINT": hub.endpoint}
        for number in range(4):
            home, source = folder / f"home{number}", folder / f"source{number}"
            source.mkdir()
            hub.add(REPO, {"Tiny-F32.gguf": tiny_gguf()})
            commands = []
            for other in range(4):
                path = source / f"Other{other}-F32.gguf"
                path.write_bytes(tiny_gguf(seed=other + 2))
                commands += [["models", "import", str(path), *["--copy"] * (other % 2)]]
            commands += [["models", "import", str(source / "Other1-F32.gguf"), "--copy"], ["models", "pull", REPO]]
            processes = [started(home, command, **more) for command in commands]
            said = [process.communicate(timeout=300)[1] for process in processes]
            good, bad, stray = library(home)
            codes = [process.returncode for process in processes]
            fine = sorted(codes) in ([0] * 5 + [2], [0] * 6) and len(good) == 5 and not bad and not stray
            yield (
                None if fine and not any("Traceback" in text for text in said) else f"{codes}, {good}, {stray}: {said}"
            )


def kept_files(folder: Path, _: random.Random) -> Found:
    """Odd catalogues, and kept files that are devices, pipes, folders or huge: said or left out, within seconds."""
    home = folder / "home"
    run(home, "models", "list")
    place = home / "catalog.toml"
    for name, content in CATALOGUES.items():
        place.write_bytes(content)
        began = sum(os.times()[2:4])
        done = run(home, "models", "pairs")
        slow = sum(os.times()[2:4]) - began  # of the processor, as the machine may be busy
        yield wrong(done) or (f"{name}: {slow:.0f} s" if slow > 15 else None)
    for target in (place, home / "models" / ".facts.json"):
        for kind in ("/dev/zero", "/dev/random", "/proc/self/mem", "pipe", "folder", "loop"):
            with contextlib.suppress(OSError):
                target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "pipe":
                os.mkfifo(target)
            elif kind == "folder":
                target.mkdir()
            else:
                target.symlink_to(target if kind == "loop" else kind)
            done = run(home, "models", "list" if target.name.startswith(".") else "pairs")
            yield wrong(done) and f"{target.name} is {kind}: {wrong(done)}"


def texts(folder: Path, _: random.Random) -> Found:
    """Characters that reorder, hide or command in every text of a catalogue: none is printed raw."""
    home, place = folder / "home", folder / "home" / "catalog.toml"
    run(home, "models", "list")
    for mark in RAW:
        text = json.dumps(f"x{mark}y")
        place.write_text(
            f"[[pair]]\nid = {text}\nmethod = {text}\nfamily = {text}\nlicence = {text}\nnote = {text}\n"
            f"evidence = {text}\ntarget = {{ model = {text}, file = {text}, bytes = 1000000 }}\n"
            f"drafter = {{ model = {text}, file = {text} }}\n",
            "utf-8",
        )
        for words in (("models", "pairs"), ("models", "pairs", "bundled"), ("models", "pull", f"x{mark}y")):
            done = run(home, *words, HF_HUB_OFFLINE="1")
            yield wrong(done, (0, 1, 2)) or (
                f"{mark!r} is printed raw by {words}" if mark in done.stdout + done.stderr else None
            )


CASES: Final[dict[str, Callable[[Path, random.Random], Found]]] = {
    "hub_variables": variables, "hub_waits": waits, "hub_kills": kills, "hub_together": together,
    "hub_kept_files": kept_files, "hub_texts": texts,
}  # fmt: skip
