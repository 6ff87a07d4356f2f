"""What a stranger does to the engine: others that never answer, kept files that never end, grammars without a bound.

The cases of ``python -m tests.soak.strangers`` on the engine and what it keeps.
"""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import gguf
from tests.app.engine.test_control_tokens import FAMILIES, spelled, write_vocabulary
from tests.app.terminal import ROOT
from tests.models.other_servers import LOOPBACK, OTHERS, free_port, lending, serving
from tests.soak.strangers import BUNDLED, MAIN, Case, Found, wrong

from slipstream.models.child import run_child
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.probe import Prober
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.remote import ask_all

GREETING: Final = struct.pack("<QBBBx24x", 28, 7, 0, 0)
COUNT: Final = struct.pack("<QI", 4, 64)
TOTAL: Final = 12.0  # seconds for a command's wait, beside its start on a busy machine
MEMORY: Final = 6 << 20  # KiB of address space of a command that reads kept files
HANG: Final = """import sys, time
class Hanging:
    def find_spec(self, name, *_):
        if name == "llama_cpp":
            time.sleep(600)
if any({module!r} in word for word in sys.orig_argv):
    sys.meta_path.insert(0, Hanging())
"""
CHILD: Final = "import os, time; from slipstream.models.child import end_with_parent; end_with_parent(); "


def _dripping(raw: bytes, seconds: float) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        for byte in raw * 100:
            connection.sendall(bytes([byte]))
            time.sleep(seconds)

    return answer


def _then_silent(*answers: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        for raw in answers:
            connection.recv(64)
            connection.sendall(raw)
        time.sleep(600)

    return answer


SLOW: Final = {
    "a byte in 2.5 s": _dripping(GREETING, 2.5),
    "a byte in 0.4 s": _dripping(GREETING, 0.4),
    "silent after its greeting": _then_silent(GREETING),
    "silent after the count of its devices": _then_silent(GREETING, COUNT),
    "silent after one device of 64": _then_silent(GREETING, COUNT, struct.pack("<QQQ", 16, 1, 1)),
    "half an answer": _then_silent(GREETING[:9]),
    "slow devices": _dripping(GREETING + COUNT + struct.pack("<QQQ", 16, 1, 1) * 64, 0.05),
} | {f"a lender that {name}": answer for name, (answer, _) in OTHERS.items()}


def lenders(_folder: Path, _chance: random.Random) -> Found:
    """Other machines that answer late, wrong or never: all are known within a few seconds."""
    refused = f"{LOOPBACK}:{free_port()}"
    named = {name: serving(answer) for name, answer in SLOW.items()} | {
        "refused": refused,
        "no name": "no-such.invalid",
    }
    for name, endpoint in named.items():
        began = time.monotonic()
        [found] = ask_all(endpoint)
        took = time.monotonic() - began
        bad = "devices" if found.devices and name != "slow devices" else "" if found.problem else "no words"
        yield f"{name}: {took:.1f} s, {bad}" if took > 6 or bad else None
    began = time.monotonic()
    ask_all(",".join(list(named.values())[:16]))
    took = time.monotonic() - began
    yield None if took < 8 else f"sixteen at once: {took:.1f} s"


@contextmanager
def _started(folder: Path, *words: str, hang: str = "") -> Iterator[subprocess.Popen[str]]:
    """A command; with ``hang``, each process of it whose arguments hold this word hangs as it loads llama.cpp."""
    place = folder / "hang"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(HANG.format(module=hang) if hang else "")
    variables = {**os.environ, "PYTHONPATH": f"{place}:{ROOT}", "SLIPSTREAM_HOME": str(folder / "home")}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, errors="replace", env=variables, cwd=ROOT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def processes_left(word: str, folder: Path) -> list[int]:
    """Processes of a command in this folder whose command line holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                line = (entry / "cmdline").read_bytes()
                line += (entry / "environ").read_bytes() if os.fsencode(folder) not in line else b""
            except OSError:
                continue
            found += [int(entry.name)] if word.encode() in line and os.fsencode(folder) in line else []
    return found


def waits(folder: Path, _: random.Random) -> Found:
    """Commands that wait: words after five seconds, an end at Ctrl-C, and nothing left behind."""
    silent = serving(_two_faced())
    kinds = {
        "devices": (("doctor",), "models.llama.devices", "waiting for llama.cpp's devices"),
        "engine": (("run", "-p", "Hi."), "process.worker", "waiting for the engine"),
        "lend": (("lend", "--port", str(free_port())), "models.llama.devices", "waiting for llama.cpp's devices"),
        "server": (("lend", "--port", str(free_port())), "models.llama.remote", "Waiting for the server"),
        "another machine": (("run", "-p", "Hi.", "--rpc", silent), "", f"waiting for {silent}"),
    }
    for name, (words, hang, expected) in kinds.items():
        (folder / name).mkdir()
        with _started(folder / name, *words, hang=hang) as process:
            time.sleep(TOTAL + 8)
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=TOTAL)
            except subprocess.TimeoutExpired:
                yield f"{name}: Ctrl-C does not end it"
                continue
            yield None if expected in out + err else f"{name}: said {out + err!r}"
            yield None if process.returncode in (130, 0) else f"{name}: exit code {process.returncode}"
            time.sleep(1)
            yield f"{name}: {hang} lives on" if hang and processes_left(hang, folder / name) else None
        with _started(folder / name, *words, hang=hang) as process:
            time.sleep(4)
            process.kill()
            process.wait()
            time.sleep(3)
            yield f"{name}: {hang} lives on after a kill" if hang and processes_left(hang, folder / name) else None


def _two_faced() -> Callable[[socket.socket], None]:
    """A lender that answers every first question, and llama.cpp's second connection never."""
    seen = []

    def answer(connection: socket.socket) -> None:
        seen.append(connection)
        (lending((3 << 30, 4 << 30)) if len(seen) == 1 else _then_silent(GREETING))(connection)

    return answer


def children(folder: Path, _: random.Random) -> Found:
    """Child processes that hang, print without an end, or ignore signals: an end at their limit."""
    codes = {
        "sleeps": "time.sleep(600)",
        "spins": "\nwhile True: pass",
        "ignores signals": "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)",
        "closes its output": "os.close(1); os.close(2); time.sleep(600)",
        "a child of its own": "import subprocess; subprocess.run(['sleep', '20'])",
        "a child that holds its output": "import subprocess; subprocess.Popen(['sleep', '20']); time.sleep(600)",
        "stops itself": "import signal; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)",
        "prints without an end": "\nwhile True: print('x' * 65536)",
        "complains without an end": "import sys\nwhile True: sys.stderr.write('x' * 65536)",
        "a session of its own": "os.setsid(); time.sleep(600)",
        "many threads": "import threading\nfor _ in range(99): threading.Thread(target=time.sleep, args=[600]).start()",
    }
    for name, code in codes.items():
        began = time.monotonic()
        try:
            run_child(["-c", CHILD + code], 3)
            yield f"{name}: no end at the limit"
        except subprocess.TimeoutExpired:
            took = time.monotonic() - began
            yield None if took < 3 + TOTAL else f"{name}: {took:.0f} s"
    copy = shutil.copy(BUNDLED, folder / "m.gguf")
    starts = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); "
    probes = {
        "hangs": "import time; time.sleep(600)",
        "ends": "raise SystemExit(3)",
        "garbage": "print('garbage', flush=True); import time; time.sleep(600)",
        "half a line": "print('{', end='', flush=True); import time; time.sleep(600)",
        "a list": "print('[]', flush=True); import time; time.sleep(600)",
        "much": "[print('x' * 60000, end='', flush=True) for _ in range(99999)]",
        "no UTF-8": "sys.stdout.buffer.write(bytes([255, 254, 10])); sys.stdout.flush(); import time; time.sleep(600)",
        "deep": "print('[' * 20000, flush=True); import time; time.sleep(600)",
        "nulls": "print(chr(0) * 200, flush=True); import time; time.sleep(600)",
        "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "a number": "print(7, flush=True); import time; time.sleep(600)",
    }
    for name, code in probes.items():
        began = time.monotonic()
        with closing(Prober([sys.executable, "-c", starts + code], seconds=2)) as prober:
            try:
                prober.check(Path(copy))
                yield f"probe {name}: taken"
            except SlipstreamError as error:
                took = time.monotonic() - began
                yield None if took < 4 + TOTAL and error.hint else f"probe {name}: {took:.0f} s, {error}"
            except ValueError as error:
                yield f"probe {name}: {error!r}"


def bad_file(path: Path, kind: str) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    match kind:
        case "endless":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            with path.open("wb") as opened:
                opened.truncate(1 << 40)
        case "loop":
            path.symlink_to(path)
        case "noise":
            path.write_bytes(random.Random(1).randbytes(100_000))
        case "deep":
            path.write_bytes(b"[" * 1_000_000)


def reads(folder: Path, chance: random.Random) -> Found:
    """Each file that the engine keeps replaced by what never ends, is huge, deep or no file: replies go on."""
    home = folder / "home"
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({MEMORY << 10}, {MEMORY << 10}))\n"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home)}

    def replied() -> subprocess.CompletedProcess[str]:
        words = ["run", "-p", "Say hi.", "--seed", "7", "--max-tokens", "12", "--chat", "one"]
        return subprocess.run(
            [sys.executable, "-c", limited + MAIN, *words], capture_output=True, text=True, errors="replace", cwd=ROOT,
            stdin=subprocess.DEVNULL, env=variables, timeout=150,
        )  # fmt: skip

    for _ in range(2):
        yield wrong(replied())
    names = ("derived/*.auto", "derived/*.costs", "derived/*.recycle", "derived/*-kangaroo-*", "states/*.state",
             "index/*/text.index", "logs/engine.note", "logs/engine.log")  # fmt: skip
    kinds = ("endless", "pipe", "folder", "large", "loop", "noise", "deep")
    tries = [(pattern, kind) for pattern in names for kind in kinds]
    chance.shuffle(tries)
    for pattern, kind in tries:
        for path in sorted(home.glob(pattern))[:1]:
            bad_file(path, kind)
            try:
                done = replied()
            except subprocess.TimeoutExpired:
                yield f"{kind} {path.name}: no end"
                continue
            fine = (0, 1) if "logs" in pattern else (0,)  # a log that cannot be written is said
            bad = wrong(done, fine) or ("" if done.stdout.strip() or done.returncode else "no reply")
            yield f"{kind} {path.name}: {bad}" if bad else None
            bad_file(path, "")


def _chained(rule: str, last: str, count: int) -> str:
    """Rules of which each names the next; ``rule`` has a place for its number, the next and one far away."""
    return "\n".join(rule.format(n, n + 1, n * 7 % count) for n in range(count)) + "\n" + last.format(count)


def _references(count: int) -> str:
    links = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"type": "null"}]} for n in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": links | {f"d{count}": {}}})


GRAMMARS: Final[dict[str, tuple[str, Callable[[int], str]]]] = {
    "rules": ("lark", lambda n: "start: r0\n" + _chained('r{0}: "a" r{1}', 'r{0}: "c"', n)),
    "rules back": ("lark", lambda n: "start: r0\n" + _chained('r{0}: "a" r{1} | r{2}', 'r{0}: "c"', n)),
    "terminals": ("lark", lambda n: "start: R0\n" + _chained("R{0}: /[a-z]+{2}x*/ R{1}", 'R{0}: "c"', n)),
    "GBNF rules": ("gbnf", lambda n: "root ::= r0\n" + _chained('r{0} ::= "a" r{1}', 'r{0} ::= "c"', n)),
    "brackets": ("gbnf", lambda n: "root ::= " + "(" * n + '"a"' + ")" * n),
    "nested": ("lark", lambda n: "start: " + "(" * n + '"a"' + ")*" * n),
    "repeats": ("lark", lambda n: "start: " + "(" * 6 + '"a"' + f"){{1,{n}}}" * 6),
    "pattern": ("json", lambda n: json.dumps({"type": "string", "pattern": "(" * n + "a" + ")*" * n})),
    "counts": ("json", lambda n: json.dumps({"type": "string", "minLength": n**3, "maxLength": n**4})),
    "references": ("json", _references),
    "items": ("json", lambda n: '{"items":' * n + "{}" + "}" * n),
    "choices": ("json", lambda n: json.dumps({"anyOf": [{"properties": {f"a{m}": {"const": m}}} for m in range(n)]})),
}
COMPILED: Final = """
import resource, sys
from pathlib import Path
import numpy as np
from slipstream.models.errors import UsageError
from slipstream.models.grammar.matching import GrammarTokens, matcher_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
model = LlamaModel(Path(sys.argv[2]), placement=Placement(0), vocabulary_only=True)
pieces = [model.piece(token) for token in range(model.n_vocab)]
tokens = GrammarTokens(pieces, model.ends, lambda text: model.tokenize(text, False))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    matcher = matcher_of(sys.argv[1], sys.stdin.read(), tokens)
    for _ in range(6):
        allowed = matcher.allowed()
        assert all(matcher.fits(token) == allowed[token] for token in range(model.n_vocab)), "two answers"
        if not allowed[3:].any():
            break
        matcher.take(int(np.flatnonzero(allowed[3:])[0]) + 3)
except UsageError as error:
    assert "\\n" not in error.title
print("fine")
"""


def grammars(_folder: Path, _chance: random.Random) -> Found:
    """Grammars and schemas without a bound: used, or refused in one line; the process lives."""
    for size in (30, 300, 900, 3_000, 20_000):
        for name, (kind, made) in GRAMMARS.items():
            try:
                done = subprocess.run(
                    [sys.executable, "-c", COMPILED, kind, str(BUNDLED)], input=made(size), capture_output=True,
                    text=True, timeout=90, cwd=ROOT,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                yield f"{name}, {size}: no end"
                continue
            yield None if done.stdout == "fine\n" else f"{name}, {size}: {done.returncode} {done.stderr[-300:]}"


def marks(folder: Path, chance: random.Random) -> Found:
    """Texts that hold a vocabulary's own marks: the tokens spell the text, and no control token comes in."""
    names = (
        "<mask>", "<unused3049>", "<s>", "</s>", "<0x0A>", "\u2581", "\ue000", "\U000f0000", "\U0010fffd", " ", "\n",
        "a",
    )  # fmt: skip
    for kind in ("llama", "gpt2"):
        for number, family in enumerate(FAMILIES):
            for of_type in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED):
                path = write_vocabulary(folder / "v.gguf", family, kind, of_type)
                model = LlamaModel(path, placement=Placement(0), vocabulary_only=True)
                controls = {token for token, each in enumerate(model.header.token_types) if each == 3}
                for _ in range(9):
                    text = "x" + "".join(chance.choices((*names, *family), k=chance.randint(1, 9)))
                    bad = spelled(model, text) != text or controls & set(model.tokenize(text, False))
                    yield f"{kind} {number}: {text!r} becomes {spelled(model, text)!r}" if bad else None
                model.close()


CASES: Final[dict[str, Case]] = {case.__name__: case for case in (lenders, waits, children, reads, grammars, marks)}
