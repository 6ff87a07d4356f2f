"""The store against a model of a few lines, step by step."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.records import Status
from slipstream.app.chats.store import ChatStore
from slipstream.models.errors import UsageError

WORDS = ["fox", "sea", "Zürich", "naïve", "owl's", "C++", "日本", "x"]
MEMORY = Path("/dev/shm")  # a disk that is waited for at every step would make this a test of the disk
NUMBERS = st.integers(0, 99)
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


@dataclass
class Said:
    number: int
    parent: "Said | None"
    role: str
    text: str
    failed: bool = False
    children: list["Said"] = field(default_factory=list)
    shown: list["Said"] = field(default_factory=list)
    """Children in the order in which they were picked; the last one that did not fail is shown."""


class Talk(Said):
    def __init__(self) -> None:
        super().__init__(0, None, "", "")
        self.title = ""
        self.pinned = self.deleted = False

    def branch(self) -> list[Said]:
        at: Said = self
        found = []
        while alive := [child for child in at.shown if not child.failed]:
            at = alive[-1]
            found.append(at)
        return found

    def everything(self, at: Said | None = None) -> list[Said]:
        at = at or self
        return [found for child in at.children if not child.failed for found in (child, *self.everything(child))]


class Chats(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.store = ChatStore(self.folder / "chats.db")
        self.talks: dict[str, Talk] = {}
        for text in ("fox", "sea"):
            self.create()
            self.say(len(self.talks) - 1, text, text, "done")

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def add(self, parent: Said, number: int, role: str, text: str) -> Said:
        said = Said(number, parent, role, text)
        parent.children.append(said)
        parent.shown.append(said)
        return said

    def alive(self) -> list[str]:
        return [chat for chat, talk in self.talks.items() if not talk.deleted]

    def one(self, at: int) -> tuple[str, Talk]:
        """Chooses a chat that is not deleted; a new one where there is none."""
        if not self.alive():
            self.create()
        chat = self.alive()[at % len(self.alive())]
        return chat, self.talks[chat]

    @rule()
    def create(self) -> None:
        self.talks[self.store.create("untitled").id] = Talk()

    def replied(self, chat: str, parent: Said, text: str, status: Status = "done", number: int | None = None) -> None:
        begun = self.store.begin_reply(chat, model="m", fingerprint="f", drafter="d", seed=1, parent=number)
        self.store.append_reply(begun.id, text, [1])
        self.store.finish_reply(begun.id, status)
        self.add(parent, begun.id, "assistant", text).failed = status == "failed"

    @rule(which=NUMBERS, text=TEXTS, answer=TEXTS, status=st.sampled_from(get_args(Status)[1:]))
    def say(self, which: int, text: str, answer: str, status: Status) -> None:
        chat, talk = self.one(which)
        end = talk.branch()[-1] if talk.branch() else talk
        self.add(end, self.store.add_user(chat, text).id, "user", text)
        self.replied(chat, talk.branch()[-1], answer, status)

    @rule(which=NUMBERS, text=TEXTS, at=NUMBERS)
    def again(self, which: int, text: str, at: int) -> None:
        chat, talk = self.one(which)
        if branch := talk.branch():
            message = branch[at % len(branch)]
            self.replied(chat, message, text, number=message.number)

    @rule(which=NUMBERS, text=TEXTS, at=NUMBERS)
    def edit(self, which: int, text: str, at: int) -> None:
        chat, talk = self.one(which)
        if branch := talk.branch():
            message = branch[at % len(branch)]
            assert message.parent
            number = self.store.add_user(chat, text, replaces=message.number).id
            self.add(message.parent, number, "user", text)

    @rule(which=NUMBERS, at=NUMBERS)
    def withdraw(self, which: int, at: int) -> None:
        chat, talk = self.one(which)
        if branch := talk.branch():
            message = branch[at % len(branch)]
            self.store.withdraw(message.number)
            message.failed = True
            talk.title = self.store.get(chat).title and talk.title  # a chat without messages has none of its own

    @rule(which=NUMBERS, at=NUMBERS)
    def show(self, which: int, at: int) -> None:
        chat, talk = self.one(which)
        if everything := talk.everything():
            message = everything[at % len(everything)]
            self.store.show(message.number)
            assert message.number in [kept.id for kept in self.store.messages(chat)]
            while message.parent:
                message.parent.shown.remove(message)
                message.parent.shown.append(message)
                message = message.parent

    @rule(which=NUMBERS, text=TEXTS)
    def go_on(self, which: int, text: str) -> None:
        chat, talk = self.one(which)
        branch = talk.branch()
        if branch and branch[-1].role == "assistant":
            kept = self.store.messages(chat)[-1]
            before = self.store.go_on(kept, model="m", fingerprint="f", drafter="d")
            assert (before.content, before.tokens) == (kept.content, kept.tokens)
            self.store.append_reply(kept.id, " " + text, [2])
            self.store.finish_reply(kept.id)
            branch[-1].text += " " + text

    @rule(which=NUMBERS, title=TEXTS)
    def rename(self, which: int, title: str) -> None:
        chat, talk = self.one(which)
        self.store.rename(chat, title)
        talk.title = title

    @rule(which=NUMBERS, pinned=st.booleans())
    def pin(self, which: int, pinned: bool) -> None:
        chat, talk = self.one(which)
        self.store.pin(chat, pinned)
        talk.pinned = pinned

    @rule(which=NUMBERS)
    def delete(self, which: int) -> None:
        chat, talk = self.one(which)
        self.store.delete(chat)
        talk.deleted = True

    @precondition(lambda self: len(self.alive()) < len(self.talks))
    @rule(which=NUMBERS)
    def undo(self, which: int) -> None:
        deleted = [chat for chat, talk in self.talks.items() if talk.deleted]
        chat = deleted[which % len(deleted)]
        assert self.store.restore(chat)
        self.talks[chat].deleted = False

    def erased(self) -> None:
        gone = [chat for chat, talk in self.talks.items() if talk.deleted]
        self.talks = {chat: talk for chat, talk in self.talks.items() if not talk.deleted}
        assert not any(map(self.store.restore, gone))

    @rule()
    def erase(self) -> None:
        self.store.erase_deleted(0)
        self.erased()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ChatStore(self.folder / "chats.db")
        self.erased()

    @rule(which=NUMBERS)
    def export_and_import(self, which: int) -> None:
        chat, talk = self.one(which)
        text = exported(self.store, [chat], "json")
        title, before = self.store.get(chat).title, self.store.all_messages(chat)
        self.delete(self.alive().index(chat))
        self.erase()
        if not before:
            with pytest.raises(UsageError, match="nothing was imported"):
                import_chats(self.store, text.encode(), "export")
            return
        for copy in import_chats(self.store, text.encode(), "export"):
            assert (copy.id, copy.title, copy.pinned) == (chat, title, talk.pinned)
            after = self.store.all_messages(chat)
            numbers = {old.id: new.id for (old, _), (new, _) in zip(before, after, strict=True)}
            self.forget_failed(talk)
            for message in talk.everything():
                message.number = numbers[message.number]
            talk.deleted = False
            self.talks[chat] = talk

    def forget_failed(self, said: Said) -> None:
        said.children = [child for child in said.children if not child.failed]
        said.shown = [child for child in said.shown if not child.failed]
        for child in said.children:
            self.forget_failed(child)

    @rule(word=st.sampled_from(WORDS))
    def search(self, word: str) -> None:
        found = {hit.message for hit in self.store.search(word, 1000) if hit.message is not None}
        bare = word.split("'")[0].strip("+").casefold()
        expected = {
            said.number
            for talk in self.talks.values()
            if not talk.deleted
            for said in self.all_alive(talk)
            if any(part.casefold().startswith(bare) for part in said.text.split())
        }
        assert found == expected

    def all_alive(self, talk: Said) -> list[Said]:
        """All messages that did not fail, those behind a failed one too."""
        below = [found for child in talk.children for found in self.all_alive(child)]
        return below + [child for child in talk.children if not child.failed]

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "store"):
            return
        kept = {chat.id: chat for chat in self.store.list_chats(1000)}
        assert kept.keys() == {chat for chat, talk in self.talks.items() if not talk.deleted}
        for name, chat in kept.items():
            talk = self.talks[name]
            assert chat.pinned == talk.pinned
            assert not talk.title or chat.title == talk.title
            branch = talk.branch()
            assert [(m.id, m.role, m.content) for m in self.store.messages(name)] == [
                (said.number, said.role, said.text) for said in branch
            ]
            forks = {}
            for said in branch:
                assert said.parent
                siblings = [child.number for child in said.parent.children if not child.failed]
                if len(siblings) > 1:
                    forks[said.number] = siblings
            assert self.store.forks(name) == forks


Chats.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_store_does_what_the_model_does = Chats.TestCase
