"""Files that are deleted, replaced, emptied or written to under a loaded model: a reply, or an error in words."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from tests.models.hub_models import split_gguf

from slipstream.app.engine.load import load
from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import AUTO, Generate, Load, Message, Sampling
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import EngineDiedError, ModelChangedError, ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.model import LlamaModel
from slipstream.models.outside import shown_path

pytestmark = [pytest.mark.program, pytest.mark.slow]

BUNDLED: Final = Path(__file__).parents[3] / "models" / "bundled"
QUESTION: Final = [Message("system", "You tell stories. " * 20), Message("user", "Tell me a story about a small fox.")]


@dataclass(frozen=True)
class Place:
    root: Path
    request: Load

    def reply(self, session: Session, number: int = 1, drafter: str = AUTO) -> Done:
        state = str(self.root / "states" / "chat.state")
        asked = Generate(number, QUESTION, Sampling(0.8, seed=4), drafter, max_tokens=40, state=state)
        return session.reply(asked, lambda _: None, lambda: False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("slipstream-mini-q8_0.gguf", "slipstream-mini-draft-q8_0.gguf"):
        shutil.copyfile(BUNDLED / name, tmp_path / name)
    (tmp_path / "heads").mkdir()
    for name in ("medusa", "kangaroo", "space", "eagle3-q8_0"):
        shutil.copyfile(BUNDLED / f"slipstream-mini-{name}.gguf", tmp_path / "heads" / f"{name}.gguf")
    target = tmp_path / "slipstream-mini-q8_0.gguf"
    with closing(open_index(tmp_path / "index", read_header(target))) as index:
        index.add([TextPiece("story", [*range(300, 340)])])
    for folder in ("states", "derived"):
        (tmp_path / folder).mkdir()
    request = Load(
        str(target), str(tmp_path / "slipstream-mini-draft-q8_0.gguf"),
        [str(path) for path in sorted((tmp_path / "heads").iterdir())], derived=str(tmp_path / "derived"),
        drafter=AUTO, exact="always", states=str(tmp_path / "states"), index=str(tmp_path / "index"),
        chats=str(tmp_path / "chats.db"), left_out=str(tmp_path / "drafters.toml"),
        probed=str(tmp_path / "derived" / "probed.json"),
    )  # fmt: skip
    return Place(tmp_path, request)


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def emptied(path: Path) -> None:
    if path.is_dir():
        for each in path.iterdir():
            gone(each)
    else:
        path.write_bytes(b"")


def turned(path: Path) -> None:
    """A file in the place of a folder, a folder in the place of a file."""
    folder = path.is_dir()
    gone(path)
    path.write_bytes(b"x") if folder else path.mkdir()


def garbled(path: Path) -> None:
    for each in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        gone(each)  # a new file: what is mapped stays as it was
        each.write_bytes(os.urandom(3000))
    if not path.exists():
        path.write_bytes(b"\xff\x00 = [")


def looped(path: Path) -> None:
    gone(path)
    path.symlink_to(path)


PLACES: Final = ("states", "derived", "index", "heads", "chats.db", "drafters.toml", "slipstream-mini-draft-q8_0.gguf")
WAYS: Final[tuple[Callable[[Path], None], ...]] = (gone, emptied, turned, garbled, looped)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PLACES)
def test_a_reply_comes_whatever_goes(place: Place, name: str, way: Callable[[Path], None]) -> None:
    """Between two replies, and then before the model is loaded again."""
    session, loaded = load(place.request, lambda _: None)
    with closing(session):
        assert not loaded.failed
        text = place.reply(session).text
        session.idle()
        mapped = name in ("index", "slipstream-mini-draft-q8_0.gguf") and way is emptied
        if not mapped:  # cutting a mapped file short ends a process: see the test of the client
            way(place.root / name)
        for number, drafter in enumerate((AUTO, "recycle", "retrieval", "draft", "medusa"), 2):
            assert place.reply(session, number, drafter).text == text, drafter
        session.idle()
    way(place.root / name)
    session, loaded = load(place.request, lambda _: None)
    with closing(session):
        done = place.reply(session, 9)
        assert done.text == text
        failed = set(loaded.failed | done.failed)
        assert failed == ({"draft"} if name.endswith(".gguf") else set()) or name in ("index", "heads", "derived"), (
            failed
        )


def test_paths_of_any_bytes(place: Place) -> None:
    odd = Path(os.fsdecode(os.fsencode(place.root) + b"/h\xff"))
    shutil.copytree(place.root, odd, ignore=lambda *_: ["h\udcff"])
    request = replace(
        place.request, derived=str(odd / "derived"), states=str(odd / "states"), index=str(odd / "index"),
        model=str(odd / "slipstream-mini-q8_0.gguf"), draft_model=str(odd / "slipstream-mini-draft-q8_0.gguf"),
        heads=[str(path) for path in sorted((odd / "heads").iterdir())], probed=None, drafter="kangaroo",
    )  # fmt: skip
    session, loaded = load(request, lambda _: None)
    with closing(session):
        text = place.reply(session, 1, "none").text
        for number, drafter in enumerate(("kangaroo", "eagle3", "draft", "medusa"), 2):
            assert place.reply(session, number, drafter).text == text
        assert not loaded.failed and not session.drafters.new_failures()


def test_a_stop_string_that_is_not_utf_8_is_refused(place: Place) -> None:
    session, _ = load(replace(place.request, heads=[], draft_model=None, drafter="none"), lambda _: None)
    with closing(session), pytest.raises(UsageError, match="a stop string is not UTF-8"):
        asked = Generate(1, QUESTION, stop=["\udcff"])
        session.reply(asked, lambda _: None, lambda: False)


def replaced(path: Path) -> None:
    other = path.with_name("other.gguf")
    shutil.copyfile(path, other)
    os.replace(other, path)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved.gguf"))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (gone, "was deleted or moved while it was in use"),
        (moved, "was deleted or moved while it was in use"),
        (looped, "was deleted or moved while it was in use"),
        (replaced, "was replaced while it was in use"),
        (garbled, "was replaced while it was in use"),
        (turned, "was replaced while it was in use"),
    ],
)
def test_a_model_that_goes_amid_its_load_is_told_once(place: Place, way: Callable[[Path], None], words: str) -> None:
    path = Path(place.request.model)
    session, _ = load(replace(place.request, heads=[], draft_model=None, drafter="none"), lambda _: None)
    with closing(session):
        done = place.reply(session, 1, "none")
        assert done.remarks == {}
        way(path)
        told = place.reply(session, 2, "none")
        assert told.text == done.text
        [(title, hint)] = told.remarks.items()
        assert title == f"{shown_path(path)} {words}." and hint.startswith("Replies go on with the model as it was")
        gone(path)
        again = place.reply(session, 3, "none")
        assert again.text == done.text and again.remarks == {}


def test_a_further_file_of_a_split_model_counts_too(tmp_path: Path) -> None:
    files = [tmp_path / name for name in split_gguf("tiny")]
    for file in files:
        file.write_bytes(split_gguf("tiny")[file.name])
    with closing(LlamaModel(files[0])) as model:
        model.check_unchanged()
        replaced(files[1])
        model.check_unchanged()
        assert next(iter(model.new_remarks())).startswith(shown_path(files[1]))
    with closing(LlamaModel(files[0])) as model:
        os.utime(files[1])
        with pytest.raises(ModelChangedError, match=files[1].name):
            model.check_unchanged()


@pytest.mark.parametrize("way", [gone, emptied, turned, garbled, looped])
def test_a_model_that_is_gone_at_the_next_load_is_said_in_words(place: Place, way: Callable[[Path], None]) -> None:
    way(Path(place.request.model))
    with pytest.raises(ModelFileError) as caught:
        load(place.request, lambda _: None)
    assert Path(place.request.model).name in caught.value.title and caught.value.hint


def test_the_next_message_loads_a_model_that_was_written_to(place: Place, engine: Engine) -> None:
    request = replace(place.request, heads=[], draft_model=None, drafter="none", probed=None)
    asked = Generate(1, QUESTION, Sampling(0.8, seed=4), "none", max_tokens=40)
    engine.load(request)
    text = next(event for event in engine.reply(asked) if isinstance(event, Done)).text
    os.utime(request.model)
    with pytest.raises(EngineDiedError, match=r"was written to while it was in use"):
        list(engine.reply(replace(asked, request=2)))
    engine.load(request)
    assert next(event for event in engine.reply(replace(asked, request=3)) if isinstance(event, Done)).text == text
    os.truncate(request.model, 4096)
    with pytest.raises(EngineDiedError):
        list(engine.reply(replace(asked, request=4)))
    with pytest.raises(SlipstreamError, match="is cut short") as caught:
        engine.load(request)
    assert not isinstance(caught.value, EngineDiedError)


def test_a_log_that_goes_and_a_note_that_goes_change_nothing(place: Place, engine: Engine, tmp_path: Path) -> None:
    request = replace(place.request, heads=[], draft_model=None, drafter="recycle")
    asked = Generate(1, QUESTION, Sampling(0.8, seed=4), "recycle", max_tokens=40)
    engine.load(request)
    shutil.rmtree(tmp_path / "logs")
    assert [event for event in engine.reply(asked) if isinstance(event, Done)]
    engine.close()
    assert engine.load(request).failed == {}
