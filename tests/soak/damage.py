"""Chats damaged at random, in the file and in its log: what can be read is rescued, a backup has the rest.

A command: ``python -m tests.soak.damage [COUNT [SEED]]``; COUNT is 2,000. Prints what went wrong, then one line: what,
how many, how many failed, the 95 % bound, and the share of messages that was rescued without a backup.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.app.chats.damaged import filled, kept, left_open

from slipstream.app.chats.backups import of_days, verify
from slipstream.app.chats.store import ChatStore

PAGE = 4096
Texts = dict[str, list[str]]


def harmed(raw: bytearray, chance: random.Random) -> bytearray:
    """Does one thing to a file."""
    way = chance.randrange(6)
    at = chance.randrange(len(raw))
    if way == 0:
        raw[at] ^= 1 << chance.randrange(8)
    elif way == 1:
        place = chance.randrange(100)
        raw[place : place + 4] = chance.randbytes(4)
    elif way == 2:
        start = at // PAGE * PAGE
        raw[start : start + PAGE] = chance.choice((bytes(PAGE), b"\xff" * PAGE, chance.randbytes(PAGE)))
    elif way == 3:
        del raw[at:]
    elif way == 4:
        length = min(chance.randrange(1, 3 * PAGE), len(raw) - at)
        raw[at : at + length] = chance.randbytes(length)
    else:
        other = chance.randrange(len(raw) // PAGE) * PAGE
        start = at // PAGE * PAGE
        raw[start : start + PAGE] = raw[other : other + PAGE]
    return raw


def opened(path: Path) -> tuple[Texts, str]:
    """What a start finds, and says; raises where the file is not whole then, or takes no more."""
    with closing(ChatStore(path)) as store:
        verify(store.database.connection)
        store.search("message")
        found = kept(store)
        store.add_user(store.create().id, "goes on")
        return found, store.notice


def tried(folder: Path, past: Path, whole: Texts, chance: random.Random) -> tuple[str, float]:
    """Damages a copy and opens it, without a backup and with it; returns what went wrong, and the share rescued."""
    shutil.copytree(past, folder)
    path = folder / "chats.db"
    log = path.with_name("chats.db-wal")
    harm = log if log.exists() and chance.random() < 0.5 else path
    raw = bytearray(harm.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 5))):
        if len(raw) > PAGE:
            raw = harmed(raw, chance)
    harm.write_bytes(raw)
    second = Path(shutil.copytree(folder, folder / "second")) / "chats.db"
    backup = next(iter(of_days(path)), None)
    if backup:
        backup.unlink()
    try:
        found, _ = opened(path)
        again, notice = opened(second)
    except Exception as error:
        return repr(error), 0.0
    texts = {text for chat in whole.values() for text in chat}
    share = len(texts & {text for chat in found.values() for text in chat}) / len(texts)
    if notice and backup and {chat: whole[chat] for chat in whole} != {chat: again.get(chat) for chat in whole}:
        return f"the backup was not used: {notice}", share
    return "", share


def main(count: int = 2000, seed: int = 1) -> int:
    """Tries them; returns 1 if a start failed."""
    chance, failed, shares = random.Random(seed), 0, 0.0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        root = Path(name)
        for kind in ("closed", "killed"):
            (root / kind).mkdir()
        filled(root / "closed" / "chats.db")
        closed, _ = opened(root / "closed" / "chats.db")
        killed = left_open(root / "killed" / "chats.db")
        for number in range(count):
            past, whole = (root / "closed", closed) if number % 2 else (root / "killed", killed)
            wrong, share = tried(root / "here", past, whole, chance)
            shutil.rmtree(root / "here")
            shares += share
            failed += bool(wrong)
            if wrong:
                print(f"{number}: {wrong}", flush=True)
    bound = f", 95 % bound {3 / count:.2%}" if not failed else ""
    print(
        f"damage: {count:,} databases and logs damaged at random, {failed} failed{bound};"
        f" {shares / count:.1%} of the messages were there without a backup"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
