"""Files are tried in a process of their own, once, and it is told in words: wrong ones by the hundred, too."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.bends import strings
from tests.models.conftest import F32, I32, STRING
from tests.models.kinds import DIFFUSES, KINDS, write_kind
from tests.models.mutants import good_files, headers, lay_out, mutant, taken_apart

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.probe import COMMAND, MOST, SHIPPED, Prober, ProbeRecord, probe_once
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import check_vocabulary

pytestmark = pytest.mark.program

EAGLE = SHIPPED / "slipstream-mini-eagle3-q8_0.gguf"
READY = "import sys, time, os\nsys.stdin.readline()\nprint('{}', flush=True)\nsys.stdin.readline()\n"
MUTANTS = 500
GROUP = 100
CRASHES = "llama.cpp crashes"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with closing(Prober()) as one:
        yield one


def crasher(path: Path) -> Path:
    """A file that the header's checks let through and llama.cpp ends the process on: some bytes have no token."""
    model = taken_apart(write_kind(path, "llama").read_bytes())
    keep = 100
    tokens = strings(model.pairs["tokenizer.ggml.tokens"][1])[:keep]
    model.array("tokenizer.ggml.tokens", STRING, list(tokens))
    model.array("tokenizer.ggml.scores", F32, [0.0] * keep)
    kinds = [2, 3, 3, *[6] * (keep - 3)]
    model.array("tokenizer.ggml.token_type", I32, list(kinds)).number("llama.vocab_size", keep)
    for at, (name, shape, kind, offset) in enumerate(model.tensors):
        if name in ("token_embd.weight", "output.weight"):
            model.tensors[at] = (name, (shape[0], keep), kind, offset)
    lay_out(model)
    path.write_bytes(model.bytes())
    read_header(path)
    return path


def scripted(code: str, seconds: float = 60.0) -> Prober:
    return Prober([sys.executable, "-c", code], seconds)


def failure(prober: Prober, path: Path) -> SlipstreamError:
    with closing(prober), pytest.raises(SlipstreamError) as caught:
        prober.check(path)
    assert caught.value.title.isprintable() and str(path) in caught.value.title
    return caught.value


@pytest.mark.parametrize("q8_0", [False, True], ids=["F32", "Q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_good_files_pass(kind: str, q8_0: bool, prober: Prober, tmp_path: Path) -> None:
    prober.check(write_kind(tmp_path / "good.gguf", kind, q8_0=q8_0))


def test_heads_that_llama_runs_pass_and_ours_are_not_tried(prober: Prober, tmp_path: Path) -> None:
    prober.check(EAGLE)
    probe_once([EAGLE], ProbeRecord(tmp_path / "probed.json", "one"), lambda: pytest.fail("it was tried"))


def test_what_is_refused_in_order_is_told_as_it_is_and_the_process_goes_on(prober: Prober, tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="model"):
        prober.check(write_kind(tmp_path / "diffuses.gguf", DIFFUSES))
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        prober.check(tmp_path / "text.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        prober.check(tmp_path / "missing.gguf")
    prober.check(write_kind(tmp_path / "good.gguf", "llama"))


def test_a_crash_is_a_refusal_and_the_next_file_is_tried_in_a_new_process(tmp_path: Path) -> None:
    with closing(Prober()) as prober:
        for _ in range(2):
            with pytest.raises(ModelFileError, match="crashes when it loads it") as caught:
                prober.check(crasher(tmp_path / "crasher.gguf"))
            assert caught.value.hint and caught.value.title.isprintable()
        prober.check(write_kind(tmp_path / "good.gguf", "llama"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "print('GGML_ASSERT(x > \\x1b[2J) failed', file=sys.stderr, flush=True)\nos.abort()",
            r"SIGABRT\): .GGML_ASSERT",
        ),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("sys.exit(3)", "exit code 3"),
        ("print('no json', flush=True)\nsys.exit(4)", "exit code 4"),
        ("os.kill(os.getpid(), 24)", "hangs"),
        ("os.kill(os.getpid(), 9)", "not enough memory"),
    ],
)
def test_each_end_has_its_words(code: str, words: str, tmp_path: Path) -> None:
    path = write_kind(tmp_path / "model.gguf", "llama")
    assert re.search(words, failure(scripted(READY + code), path).title)


def test_a_process_that_never_ends_or_does_not_start_is_told(tmp_path: Path) -> None:
    error = failure(scripted(READY + "sys.stdin.read()", 0.1), write_kind(tmp_path / "model.gguf", "llama"))
    assert "hangs" in error.title and isinstance(error, ModelFileError)
    with (
        closing(scripted("raise SystemError('Error: no library')")) as prober,
        pytest.raises(SlipstreamError, match=r"did not start.*no library"),
    ):
        prober.check(write_kind(tmp_path / "model.gguf", "llama"))
    (path := tmp_path / "model.gguf").write_bytes(b"GGUF")
    told = pytest.raises(SlipstreamError, match="checks model files cannot be started: no such file")
    with closing(Prober([str(tmp_path / "python")])) as one, told as caught:
        one.check(path)
    assert "Close other programs" in caught.value.hint


@pytest.mark.parametrize("answer", ["garbage", "[]", "x" * 100_000, "[" * 20_000], ids=lambda answer: answer[:7])
def test_a_process_that_answers_nonsense_and_goes_on_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("slipstream.models.gguf.probe._TO_END", 0.5)
    code = READY + f"print({answer!r}, flush=True)\ntime.sleep(600)\n"
    error = failure(scripted(code), write_kind(tmp_path / "model.gguf", "llama"))
    assert "hangs" in error.title and error.hint


def test_the_process_leaves_with_the_one_that_asks() -> None:
    child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    with child.stdin, child.stdout:
        child.stdin.write(b'""\n')
        child.stdin.flush()
        assert child.stdout.readline() == b"{}\n"
        child.stdin.close()
        assert child.wait(60) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("p._CPU_SECONDS = 0; p.limit(0, 1)\nwhile True: pass", -24),
        ("p._SPACE = 2 << 30; p.limit(0, 1)\ntry: bytearray(8 << 30)\nexcept MemoryError: raise SystemExit(7)", 7),
        ("p._harden(); import resource as r\nraise SystemExit(sum(r.getrlimit(r.RLIMIT_CORE)) + 5)", 5),
    ],
    ids=["processor time", "memory", "core files"],
)
def test_the_process_is_limited(code: str, ends: int) -> None:
    done = subprocess.run([sys.executable, "-c", f"import slipstream.models.probe_child as p\n{code}"], timeout=120)
    assert done.returncode == ends


@pytest.mark.slow
def test_a_file_is_tried_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file, model = tmp_path / "kept" / "probed.json", write_kind(tmp_path / "model.gguf", "llama")
    told: list[int] = []

    def look(build: str = "one") -> int:
        told.clear()
        probe_once([model], ProbeRecord(file, build), lambda: told.append(1))
        return len(told)

    assert [look(), look()] == [1, 0]
    assert file.stat().st_mode & 0o777 == 0o600
    os.utime(model, ns=(1, 1))
    assert [look(), look()] == [1, 0]
    other = Path(shutil.copy(model, tmp_path / "other"))
    os.utime(other, ns=(1, 1))
    other.replace(model)  # both files exist until here, so the inodes differ
    assert [look(), look("two"), look("two")] == [1, 1, 0]
    file.write_text("{")
    assert look() == 1


def test_what_crashed_is_not_remembered(tmp_path: Path) -> None:
    path, record = crasher(tmp_path / "crasher.gguf"), ProbeRecord(tmp_path / "probed.json", "one")
    with pytest.raises(ModelFileError, match="crashes"):
        probe_once([path], record, lambda: None)
    assert not record.holds(path) and not (tmp_path / "probed.json").exists()


def test_a_record_that_cannot_be_kept_costs_nothing_but_time_and_it_stays_small(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = write_kind(tmp_path / "model.gguf", "llama")
    record = ProbeRecord(tmp_path / "file" / "probed.json", "one")
    record.add(model)
    assert record.holds(model)
    model.unlink()
    assert not record.holds(model)
    model, file = write_kind(tmp_path / "model.gguf", "llama"), tmp_path / "probed.json"
    files = ", ".join(f'"{n}": []' for n in range(MOST))
    file.write_text(f'{{"build": "one", "files": {{{files}}}}}')
    record = ProbeRecord(file, "one")
    record.add(model)
    assert record.holds(model) and file.read_text().count("[]") == MOST - 1


@pytest.mark.parametrize("kept", ['{"build": "one", "files": []}', "[]", '{"build": "one", "files": {"x": 3}}', "\xff"])
def test_a_damaged_record_is_empty(kept: str, tmp_path: Path) -> None:
    (tmp_path / "probed.json").write_text(kept, "latin-1")
    assert not ProbeRecord(tmp_path / "probed.json", "one").holds(write_kind(tmp_path / "model.gguf", "llama"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return good_files(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize("first", range(0, MUTANTS, GROUP))
def test_mutants_are_refused_or_survived(first: int, good: list[bytes], prober: Prober, tmp_path: Path) -> None:
    path, refused, tried, crashed = tmp_path / "mutant.gguf", 0, 0, []
    for seed in range(first, first + GROUP):
        path.write_bytes(mutant(good[seed // 2 % len(good)], seed))
        try:
            header = read_header(path)
            check_vocabulary(header)
        except ModelFileError as error:
            assert error.title.isprintable() and str(path) in error.title and error.hint
            refused += 1
            continue
        look_around(header, path.stat().st_size)
        tried += 1
        try:
            prober.check(path)
        except SlipstreamError as error:
            assert error.title.isprintable() and str(path) in error.title and error.hint
            if CRASHES in error.title or "hangs" in error.title:
                crashed.append((seed, error.title))
    assert refused > GROUP // 4 and tried > GROUP // 10
    assert len(crashed) <= 1, crashed


def look_around(header: Header, size: int) -> None:
    assert len(header.tokens) == header.n_vocab or not header.tokens
    assert header.add_bos in (True, False) and header.add_eos in (True, False)
    for token in (header.bos, header.eos):
        assert token is None or 0 <= token < len(header.tokens)
    assert not header.tensors or header.data_offsets[0] + header.weight_bytes <= size


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path: Path, content: bytes, magic: bool) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes((b"GGUF\3\0\0\0" if magic else b"") + content)
    with pytest.raises(ModelFileError):
        read_header(path)


@pytest.mark.slow
@given(headers())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_headers_that_are_framed_well_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(content)
    try:
        header = read_header(path)
    except ModelFileError as error:
        assert error.title.isprintable() and error.hint
    else:
        look_around(header, len(content))
