"""Taking chats elsewhere and back: Markdown, JSON, and what other programs export."""

import errno
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.chats.exporting import exported, markdown, write_export
from slipstream.app.chats.importing import import_chats, read_export
from slipstream.app.chats.records import MESSAGE_LIMIT, TITLE_LIMIT, Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.speed import Speed
from slipstream.models.errors import SlipstreamError, UsageError

FIGURES = Figures(
    Speed(48.0, 0.71, 2.2, 28.2, 20, 14, 9, 30), [[3, 2]], {"lookup": {"steps": 9}}, 40, 12, 0, 120.0,
    drafter_depths={"lookup": [[3, 2]]}, origins=[(1, "accepted", "lookup"), (4, "plain", "")], thoughts_closed=3,
)  # fmt: skip


def say(store: ChatStore, chat: str, question: str, answer: str, beside: int | None = None) -> tuple[int, int]:
    asked = store.add_user(chat, question, beside)
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="lookup", seed=7)
    store.finish_reply(reply.id, text=answer, tokens=[1, 2], reason="stop", figures=FIGURES)
    return asked.id, reply.id


def test_a_chat_leaves_and_comes_back_with_its_branches_and_figures(tmp_path: Path, store: ChatStore) -> None:
    chat = store.create().id
    asked, _ = say(store, chat, "one\n\x1b", "a")
    say(store, chat, "two", "b", beside=asked)
    store.show(asked)
    store.pin(chat)
    text = exported(store, [chat], "json")
    with closing(ChatStore(tmp_path / "other.db")) as other:
        (copy,) = import_chats(other, text.encode(), "file")
        assert copy == store.get(chat)
        assert exported(other, [chat], "json") == text
        assert [m.content for m in other.messages(chat)] == ["one\n\x1b", "a"]
        assert other.messages(chat)[1].figures == FIGURES
        assert {hit.role for hit in other.search("two")} == {"user"}
        said: list[str] = []
        assert import_chats(other, text.encode(), "file", said.append) == [] and len(other.list_chats()) == 1
        assert said == ["1 chat was here already."]


def test_markdown_has_all_branches(store: ChatStore) -> None:
    chat = store.create().id
    asked, _ = say(store, chat, "one", "a")
    say(store, chat, "two", "b", beside=asked)
    text = markdown(store, chat)
    assert [line for line in text.splitlines() if line in ("one", "two", "a", "b")] == ["two", "b", "one", "a"]
    assert "Another branch, 1 of 2, from the start" in text
    assert "30 tokens · 48.0 tok/s · lookup 71 % accepted · 1.7x faster · seed 7" in text
    assert "one" not in markdown(store, chat, branches=False).splitlines()


def test_each_reply_is_attributed_to_the_model_that_wrote_it(tmp_path: Path, store: ChatStore) -> None:
    chat = store.create().id
    for model, text in (("heron", "one"), ("heron", "two"), ("tern", "three"), ("tern", "four")):
        store.add_user(chat, "Which bird?")
        reply = store.begin_reply(chat, model=model, fingerprint=model[0], drafter="none", seed=1)
        store.finish_reply(reply.id, text=text)
    text = markdown(store, chat)
    heads = [line for line in text.splitlines() if line.startswith("## Reply")]
    assert heads == ["## Reply by heron", "## Reply", "## Reply by tern", "## Reply"]
    assert "tern" not in text.split("## Reply by tern")[0]
    assert [hit.writer for hit in store.search("two")] == ["heron"]
    with closing(ChatStore(tmp_path / "other.db")) as other:
        (there,) = import_chats(other, exported(store, [chat], "json").encode(), "x.json")
        assert markdown(other, there.id) == text


def test_an_export_is_its_owners_and_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_export(tmp_path / "a.md", "é")
    assert stat.S_IMODE((tmp_path / "a.md").stat().st_mode) == 0o600
    with pytest.raises(SlipstreamError, match="file exists"):
        write_export(tmp_path / "a.md", "x")
    assert (tmp_path / "a.md").read_text("utf-8") == "é"
    place = tmp_path / "none"
    with pytest.raises(SlipstreamError, match="there is no folder") as error:
        write_export(place / "a.md", "x")
    assert error.value.title == f"cannot write to {place / 'a.md'}: there is no folder {place}."
    assert error.value.hint == "Create it, or name another." and not place.exists()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(SlipstreamError, match="no space left") as error:
        write_export(tmp_path / "a.md", "x")
    assert error.value.hint == "Make some room, or name a file on another disk."


def node(
    role: str, *parts: object, parent: str | None = None, children: tuple[str, ...] = (), kind: str = "text"
) -> dict[str, object]:
    message = {"author": {"role": role}, "create_time": 6.0, "content": {"content_type": kind, "parts": list(parts)}}
    return {"message": message, "parent": parent, "children": list(children)}


def with_files(*names: str) -> dict[str, object]:
    said = node("user", "Read these.")
    kinds = {"png": "image/png"}
    files = [{"name": name, "mime_type": kinds.get(name[-3:], "text/x")} for name in names]
    said["message"]["metadata"] = {"attachments": files}  # type: ignore[index]
    return said


def chatgpt(title: str = "", **mapping: object) -> bytes:
    return json.dumps([{"title": title, "mapping": mapping}]).encode()


def chats_of(*chats: dict[str, object]) -> bytes:
    whole = [{"id": "x", "title": "", "model": "", "messages": [], **chat} for chat in chats]
    return json.dumps({"format": "slipstream-chats", "version": 1, "chats": whole}).encode()


SAID: dict[str, object] = {"id": 1, "parent": None, "role": "user", "content": "x", "status": "done", "tokens": []}
CHATGPT = [
    {
        "title": "Foxes",
        "create_time": 5.0,
        "update_time": 9.5,
        "current_node": "d",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
            "s": node("system", "", parent="root", children=("a",)),
            "a": node("user", "What is a fox?", parent="s", children=("d", "b")),
            "b": node("assistant", "An animal.", parent="a", children=("tool",)),
            "tool": node("tool", "{}", parent="b", children=("c",)),
            "c": node("assistant", {"image": 1}, "Red.", parent="tool", kind="multimodal_text"),
            "d": node("assistant", "A small one.", parent="a"),
        },
    }
]


def test_conversations_of_chatgpt_come_with_their_branches(store: ChatStore) -> None:
    (chat,) = import_chats(store, json.dumps(CHATGPT).encode(), "conversations.json")
    assert (chat.title, chat.created, chat.updated) == ("Foxes", 5.0, 9.5)
    shown = store.messages(chat.id)
    assert [(m.role, m.content) for m in shown] == [("user", "What is a fox?"), ("assistant", "A small one.")]
    assert shown[0].created == 6.0
    everything = ["What is a fox?", "A small one.", "An animal.", "Red."]
    assert [m.content for m, _ in store.all_messages(chat.id)] == everything
    (fork,) = store.forks(chat.id).values()
    store.show(fork[1])
    assert [m.content for m in store.messages(chat.id)] == ["What is a fox?", "An animal.", "Red."]


def test_what_a_message_holds_beside_its_text_is_counted(store: ChatStore) -> None:
    def spoken(words: str) -> dict[str, object]:
        return {"content_type": "audio_transcription", "text": words, "direction": "in"}

    picture = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://x"}
    sound = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://y"}
    video = {"content_type": "real_time_user_audio_video_asset_pointer", "frames_asset_pointers": []}
    file = chatgpt(
        "Voice",
        a=node("user", spoken("How tall?"), video, children=("b",), kind="multimodal_text"),
        b=node(
            "assistant", spoken("330 metres."), sound, "Really.", children=("c",), parent="a", kind="multimodal_text"
        ),
        c=node("user", picture, children=("d",), parent="b", kind="multimodal_text"),
        d=node("assistant", children=("e",), parent="c", kind="thoughts"),
        e=node("assistant", {"content_type": "app_card"}, "Yes.", 7, parent="d"),
        f=node("tool", picture, parent="e", kind="multimodal_text"),
    )
    said = list[str]()
    (chat,) = import_chats(store, file, "conversations.json", said.append)
    assert [m.content for m, _ in store.all_messages(chat.id)] == ["How tall?", "330 metres.\n\nReally.", "Yes."]
    (line,) = said
    for words in (
        *("2 recordings", "1 image", '1 part of the kind "thoughts"', '1 part of the kind "app_card"'),
        *('1 part of the kind "unknown"', '1 message of the role "tool"'),
    ):
        assert words in line, line


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (node("tool", "{}"), '1 message of the role "tool"'),
        (node("system", "Be brief."), '1 message of the role "system"'),
        (node("system", ""), ""),
        (node("critic", "No."), '1 message of the role "critic"'),
        (node("tool", kind="execution_output"), '1 message of the role "tool"'),
        (node("assistant", kind="code"), '1 part of the kind "code"'),
        (node("assistant", kind="tether_quote"), '1 part of the kind "tether_quote"'),
        (node("user", "x", None, True, [1]), '3 parts of the kind "unknown"'),
        (node("user", "x", {"content_type": "file", "text": " "}), '1 part of the kind "file"'),
        (node("user", "x", {"text": "y"}), ""),
        (node("user", "x", {"content_type": "\x1b[2J" + "z" * 900}), 'part of the kind "'),
        (node("user", {"content_type": "image_asset_pointer"}, {"content_type": "image_asset_pointer"}), "2 images"),
        (with_files("a.pdf", "b.csv", "c.png"), "2 files"),
        ({"children": [], "message": {"content": {"parts": ["x"]}}}, '1 message of the role ""'),
    ],
)
def test_nothing_of_a_conversation_vanishes_uncounted(store: ChatStore, message: dict[str, object], words: str) -> None:
    said = list[str]()
    file = chatgpt("x", first=node("user", "Hi"), other=message)
    import_chats(store, file, "file", said.append)
    assert ([line.removeprefix("left out: ") for line in said] == [f"{words}."]) if words[:1].isdecimal() else True
    assert bool(said) == bool(words) and all("\x1b" not in line and len(line) < 300 for line in said)


@pytest.mark.parametrize(
    "content", ["Yes.", ["Yes."], [{"type": "text", "text": "Yes."}], {"parts": "Yes."}, {"parts": ["Yes."]},
                {"content_type": "text", "text": "Yes."}],
)  # fmt: skip
def test_a_text_is_kept_in_whichever_shape_it_is(store: ChatStore, content: object) -> None:
    file = chatgpt("x", a={"children": [], "message": {"author": {"role": "assistant"}, "content": content}})
    (chat,) = import_chats(store, file, "file")
    assert [m.content for m, _ in store.all_messages(chat.id)] == ["Yes."]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"figures": {"speed": "fast"}}, "1 record of figures that no version writes"),
        ({"figures": [1]}, "1 record of figures that no version writes"),
        ({"figures": None}, ""),
        ({"figures": {"speed": {}, "origins": [[1, "guessed", ""]]}}, "1 record of the words' origins"),
        ({"figures": {"speed": {}, "origins": []}}, ""),
        ({"content": f"![a](image:{'0' * 64})"}, "1 image that the file does not hold"),
        ({"content": "".join(f"![a](image:{n * 64})" for n in "012")}, "3 images that the file does not hold"),
        ({"content": f"![a](image:{'0' * 63})"}, ""),
    ],
)
def test_nothing_of_an_own_export_vanishes_uncounted(store: ChatStore, changes: dict[str, object], words: str) -> None:
    said = list[str]()
    import_chats(store, chats_of({"messages": [{**SAID, **changes}]}), "file", said.append)
    assert said == ([f"left out: {words}."] if words else [])


def broken() -> list[bytes]:
    def file(**changes: object) -> bytes:
        return chats_of(changes)

    return [
        b"", b"[1]", b"{}", b"[" * 100_000, b"\xff", b'{"format": "slipstream-chats", "version": 2, "chats": []}',
        b'{"format": "slipstream-chats", "version": 1, "chats": [3]}', file(title=3),
        file(messages=[{**SAID, "parent": 1}]), file(messages=[SAID, SAID]),
        file(messages=[{**SAID, "role": "tool"}]), file(messages=[{**SAID, "id": 1 << 70}]),
        file(messages=[{**SAID, "tokens": [1 << 40]}]), file(messages=[SAID, "x"]),
        json.dumps([{"mapping": {"a": 3}}]).encode(),
        json.dumps([{"mapping": {"a": {"children": ["b", "b"]}, "b": {"parent": "a"}}}]).encode(),
    ]  # fmt: skip


@pytest.mark.parametrize("raw", broken())
def test_a_file_that_is_no_export_is_refused_whole(store: ChatStore, raw: bytes) -> None:
    with pytest.raises(UsageError, match="file is no export of chats") as error:
        import_chats(store, raw, "file")
    assert "conversations.json" in error.value.hint
    assert not store.list_chats()


def test_figures_of_the_wrong_kind_are_left_out(store: ChatStore) -> None:
    chat = store.create().id
    say(store, chat, "one", "a")
    whole = json.loads(exported(store, [chat], "json"))
    store.delete(chat)
    wrong: list[tuple[str, object]] = [("speed", {"tok_per_s": "fast"}), ("by_depth", [1]), ("ttft_ms", None)]
    wrong += [("by_drafter", []), ("drafter_depths", []), ("drafter_depths", {"lookup": [[1]]})]
    for part, value in wrong:
        values = json.loads(json.dumps(whole))
        values["chats"][0]["messages"][1]["figures"][part] = value
        (copy,) = import_chats(store, json.dumps(values).encode(), "file")
        assert store.messages(copy.id)[1].figures is None
        store.delete(copy.id)
    for runs in (3, [3], [[1, "guessed", ""]], [[-1, "plain", ""]], [[1.5, "plain", ""]], [[1, "plain", "x" * 101]]):
        values = json.loads(json.dumps(whole))
        values["chats"][0]["messages"][1]["figures"]["origins"] = runs
        (copy,) = import_chats(store, json.dumps(values).encode(), "file")
        assert store.messages(copy.id)[1].figures == replace(FIGURES, origins=[])
        store.delete(copy.id)


@pytest.mark.parametrize("when", ["1" + "0" * 400, "NaN", "Infinity", "1e13", "-5", "true", '"now"'])
def test_a_time_that_is_none_is_replaced(store: ChatStore, when: str) -> None:
    raw = json.dumps([{**CHATGPT[0], "create_time": 0.125, "update_time": 0.125}]).replace("0.125", when)
    (chat,) = import_chats(store, raw.encode(), "file")
    assert abs(chat.created - time.time()) < 60 and store.messages(chat.id)[0].content == "What is a fox?"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"[]", "it holds no chats"),
        (chats_of(), "it holds no chats"),
        (chats_of({}), "its chats have no messages with text"),
        (chatgpt(), "its chats have no messages with text"),
        (chatgpt(a=node("user", 3, None, {"image": 1})), "its chats have no messages with text"),
        (chatgpt(a=node("tool", "{}")), "its chats have no messages with text"),
        (chatgpt(a=node("user", "hi", parent="b"), b=node("assistant", "ho", parent="a")), "in a circle"),
        (
            chatgpt(a=node("user", "hi"), b=node("user", "x", children=("c",)), c=node("user", "y", children=("b",))),
            "in a circle",
        ),
    ],
)
def test_an_import_that_takes_nothing_says_why(store: ChatStore, raw: bytes, why: str) -> None:
    with pytest.raises(UsageError) as error:
        import_chats(store, raw, "file")
    assert why in error.value.title and error.value.hint
    assert not store.list_chats()


def test_chats_without_text_are_counted_and_messages_that_only_name_their_parent_taken_over(store: ChatStore) -> None:
    said: list[str] = []
    (chat,) = import_chats(store, chats_of({}, {"messages": [SAID]}, {}), "file", said.append)
    assert said == ["2 chats without text were left out."]
    assert [message.content for message in store.messages(chat.id)] == ["x"]
    (chat,) = import_chats(
        store, chatgpt(a=node("user", "hi", children=("gone",)), b=node("assistant", "ho", parent="a")), "file"
    )
    assert [message.content for message in store.messages(chat.id)] == ["hi", "ho"]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (chats_of({"messages": [{**SAID, "content": "x" * (MESSAGE_LIMIT + 1)}]}), "content has 10,000,001 characters"),
        (chatgpt(a=node("user", "x" * MESSAGE_LIMIT, "y")), "a message has 10,000,003 characters"),
    ],
)
def test_a_message_that_no_model_reads_is_refused(store: ChatStore, raw: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}; at most 10,000,000 fit"):
        import_chats(store, raw, "file")


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(20 << 30)  # sparse: it takes no room
    with pytest.raises(SlipstreamError, match=r"has 21,474,836,480 bytes; at most 268,435,456 can be imported"):
        read_export(path)
    with pytest.raises(SlipstreamError, match="has more than 268,435,456 bytes"):
        read_export(Path("/dev/zero"))
    with pytest.raises(SlipstreamError, match="cannot read"):
        read_export(tmp_path)


@pytest.mark.parametrize(
    "raw", [chats_of({"title": "x" * 5_000_000, "messages": [SAID]}), chatgpt("x" * 5_000_000, a=node("user", "hi"))]
)
def test_a_title_is_cut_where_it_is_imported(store: ChatStore, raw: bytes) -> None:
    (chat,) = import_chats(store, raw, "file")
    assert chat.title == "x" * (TITLE_LIMIT - 1) + "…" == store.get(chat.id).title


def test_a_title_that_is_too_long_is_refused_or_cut(store: ChatStore) -> None:
    chat = store.create("y" * 5_000_000)
    assert len(store.get(chat.id).title) == TITLE_LIMIT
    with pytest.raises(UsageError, match="the title has 5,000,000 characters") as error:
        store.rename(chat.id, "z" * 5_000_000)
    assert "at most 200" in error.value.hint
    store.rename(chat.id, "z" * TITLE_LIMIT)
    assert store.get(chat.id).title == "z" * TITLE_LIMIT


def test_a_long_title_of_an_earlier_version_is_cut_where_it_is_read(tmp_path: Path, store: ChatStore) -> None:
    chat = store.create("short").id
    say(store, chat, "w" * 5_000_000, "a")
    with sqlite3.connect(tmp_path / "chats.db") as db:
        db.execute("UPDATE chats SET title = ?, model = ?", ("v" * 5_000_000, "m" * 5_000_000))
    db.close()
    (kept,) = store.list_chats()
    assert len(kept.title) == len(kept.model) == TITLE_LIMIT
    for words in ("vvv", "www"):
        (hit,) = store.search(words)
        assert len(hit.title) <= TITLE_LIMIT and len(hit.snippet) < 1000
    assert len(markdown(store, chat).splitlines()[0]) < 300


IMPORTER = """
import os, signal, sqlite3, sys
from pathlib import Path
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore

store, left = ChatStore(Path(sys.argv[1])), int(sys.argv[3])

def kill(statement):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

store.database.connection.set_trace_callback(kill)
import_chats(store, Path(sys.argv[2]).read_bytes(), "file")
store.close()
"""


def test_an_import_that_is_killed_anywhere_can_be_repeated(tmp_path: Path) -> None:
    path, file = tmp_path / "chats.db", tmp_path / "export.json"
    chats: list[dict[str, object]] = [
        {"id": f"c{number}", "messages": [{**SAID, "content": f"text {number}"}]} for number in range(3)
    ]
    file.write_bytes(chats_of(*chats))
    counts, left, ended = set[int](), 0, False
    while not ended:
        done = subprocess.run([sys.executable, "-c", IMPORTER, path, file, str(left)], stderr=subprocess.PIPE)
        ended, left = done.returncode == 0, left + 4
        assert ended or done.returncode == -signal.SIGKILL, done.stderr
        with closing(ChatStore(path)) as store:
            counts.add(len(store.list_chats()))
    assert counts == {0, 3}, "all or none"
    with closing(ChatStore(path)) as store:
        assert import_chats(store, file.read_bytes(), "file") == []
        store.add_user("c1", "goes on here")
        assert import_chats(store, file.read_bytes(), "file") == [], "it has more, but all of that"


@pytest.mark.parametrize("own", [{}, {"conversation_id": "6f0a"}, {"create_time": None}])
def test_conversations_are_imported_once(store: ChatStore, own: dict[str, object]) -> None:
    raw = json.dumps([{**CHATGPT[0], **own}]).encode()
    said: list[str] = []
    assert len(import_chats(store, raw + b" ", "file")) == 1
    assert import_chats(store, raw, "file", said.append) == [] and said == ["1 chat was here already."]
    assert len(store.list_chats()) == 1


def test_a_reply_keeps_what_was_promised_of_its_text(store: ChatStore) -> None:
    speed = {"tokens": 2}
    assert Figures.of_values({"speed": speed, "exact": False}) == Figures(
        Speed(tokens=2), promise="changed"
    )  # as before
    assert Figures.of_values({"speed": speed, "exact": True}) == Figures(Speed(tokens=2))
    odds, same = Figures(promise="same_odds"), Figures(promise="same_text")
    assert same.followed_by(same) == same and same.followed_by(odds).promise == "same_odds"
    chat = store.create().id
    for promise, words in (("same_text", "same text"), ("same_odds", "same odds"), ("changed", "typical acceptance")):
        store.add_user(chat, "hi")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="draft", seed=1)
        store.finish_reply(reply.id, text="ho", tokens=[1], reason="stop", figures=Figures(promise=promise))
        assert words in markdown(store, chat)
