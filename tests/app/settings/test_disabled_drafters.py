"""Drafters that are switched off: the file that says so, and that the autopilot really leaves them out."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.commands import commands

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import AUTO, Generate, Message, Sampling
from slipstream.app.settings.disabled_drafters import known_left_out, leave_out, left_out
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header

MODEL, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "drafters.toml"


def test_choices_are_kept_by_model(file: Path) -> None:
    assert left_out(file, MODEL) == frozenset()
    leave_out(file, MODEL, "lookup", off=True)
    leave_out(file, MODEL, "draft", off=True)
    leave_out(file, MODEL, "draft", off=True)
    leave_out(file, OTHER, "medusa", off=True)
    assert left_out(file, MODEL) == {"lookup", "draft"} and left_out(file, OTHER) == {"medusa"}
    assert file.stat().st_mode & 0o777 == 0o600
    leave_out(file, MODEL, "lookup", off=False)
    leave_out(file, MODEL, "draft", off=False)
    leave_out(file, MODEL, "never", off=False)
    assert not left_out(file, MODEL) and left_out(file, OTHER) == {"medusa"}
    assert MODEL not in file.read_text() and file.read_text().startswith("# ")


def test_what_its_owner_wrote_stays(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('# mine\nother = 1\n\n[off]  # these\naaaa = ["x"]\n')
    leave_out(file, MODEL, "lookup", off=True)
    for words in ("# mine", "other = 1", "# these", 'aaaa = ["x"]'):
        assert words in file.read_text()


@pytest.mark.parametrize("wrong", ["off = 3", "[off]\n" + MODEL + " = 3", "[off]\n" + MODEL + " = [3]", "off", "\xff"])
def test_a_broken_file_is_said_and_left_as_it_is(file: Path, wrong: str) -> None:
    file.parent.mkdir()
    file.write_bytes(wrong.encode("latin-1"))
    for change in (lambda: left_out(file, MODEL), lambda: leave_out(file, MODEL, "lookup", off=True)):
        with pytest.raises(UsageError, match="left as it is"):
            change()
    assert file.read_bytes() == wrong.encode("latin-1") and known_left_out(file, MODEL) == frozenset()


def test_a_file_that_cannot_be_written_is_said(file: Path) -> None:
    file.parent.touch()
    with pytest.raises(SlipstreamError, match="cannot"):
        leave_out(file, MODEL, "lookup", off=True)


def pool(session: Session) -> set[str]:
    session.drafters.get(AUTO)
    pilot = session.drafters.pilot
    assert pilot
    return {arm.name for arm in pilot.arms}


def reply(session: Session) -> str:
    request = Generate(1, [Message("user", "Tell me a story.")], Sampling(seed=3), AUTO, max_tokens=60)
    return session.reply(request, lambda event: None, lambda: False).text


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})


@pytest.fixture
def session(paths: Paths) -> Iterator[Session]:
    made, _ = load(choose(paths), lambda share: None)
    with closing(made):
        yield made


@pytest.mark.slow
def test_the_autopilot_leaves_them_out_from_the_next_reply_on(session: Session, paths: Paths) -> None:
    fingerprint = read_header(Path(choose(paths).model)).fingerprint
    everyone = pool(session)
    assert {"lookup", "lookahead", "draft"} <= everyone
    text = reply(session)
    kept = session.drafters.get(AUTO)
    assert session.drafters.get(AUTO) is kept  # nothing was changed
    leave_out(paths.drafters, fingerprint, "lookahead", off=True)
    leave_out(paths.drafters, fingerprint, "draft", off=True)
    with closing(load(choose(paths), lambda share: None)[0]) as another:  # from its start
        assert pool(another) == everyone - {"lookahead", "draft"}
    assert pool(session) == everyone - {"lookahead", "draft"}
    assert reply(session) == text  # who drafts changes no text
    for name in everyone:
        leave_out(paths.drafters, fingerprint, name, off=True)
    assert pool(session) == set() and reply(session) == text
    for name in everyone - {"draft"}:
        leave_out(paths.drafters, fingerprint, name, off=False)
    assert pool(session) == everyone - {"draft"}


def test_the_command_switches_and_the_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    model = read_header(Path(choose(Paths.default()).model)).name

    slipstream = commands(capsys, "drafters")
    assert slipstream("off", "lookup") == (0, f"Automatic no longer uses lookup with {model}\n", "")
    slipstream("off", "medusa")
    listed = slipstream("list").out
    marked = {line.split()[0] for line in listed.splitlines() if "yes; off for auto" in line}
    assert marked == {"lookup", "medusa"}
    assert slipstream("on", "lookup") == (0, f"Automatic may use lookup with {model}\n", "")
    assert "lookup  " in slipstream("list")[1]
    for name in ("none", "auto", "nobody"):
        code, _, words = slipstream("off", name)
        assert code == 2 and "cannot be switched on or off" in words
