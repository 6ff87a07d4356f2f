"""Chats damaged in seven ways: how many of their messages the next start finds.

A command: ``python -m tests.soak.damage [SEEDS [SEED]]``; 6. Two sessions on one day write 30 and 10 chats. The second
one ends, or is killed; then the file is damaged, beside its backups or without them. Prints the share of messages that
are kept as a table, then one line: what, how many, how many starts failed, the 95 % bound.
"""

import random
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.app.chats.damaged import DAMAGES, damaged_in, filled, kept, talk

from slipstream.app.chats.store import ChatStore

FIRST, SECOND = 30, 10  # chats of the two sessions
ENDS: Final = ("clean end", "killed")


def texts(store: ChatStore) -> set[str]:
    return {text for chat in kept(store).values() for text in chat}


def prepared(folder: Path, killed: bool) -> set[str]:
    """Makes the files as the second session leaves them; returns its messages."""
    filled(folder / "open" / "chats.db", FIRST)
    with closing(ChatStore(folder / "open" / "chats.db")) as store:
        talk(store, SECOND)
        whole = texts(store)
        if killed:
            shutil.copytree(folder / "open", folder / "left")
    if not killed:
        shutil.copytree(folder / "open", folder / "left")
    return whole


def tried(folder: Path, whole: set[str], how: str, backups: bool, chance: random.Random) -> float:
    """Damages a copy and starts twice; returns the share of the messages that is there then."""
    here = Path(shutil.copytree(folder / "left", folder / "here"))
    try:
        for backup in () if backups else here.glob("chats-day-*"):
            backup.unlink()
        damaged_in(here / "chats.db", how, chance)
        with closing(ChatStore(here / "chats.db")) as store:
            found = texts(store)
            store.search("message")
            store.add_user(store.create().id, "goes on")
        with closing(ChatStore(here / "chats.db")) as store:
            if store.notice or texts(store) != found | {"goes on"}:
                raise RuntimeError(f"the second start finds something else: {store.notice}")
        return len(found & whole) / len(whole)
    finally:
        shutil.rmtree(here)


def main(seeds: int = 6, first: int = 1) -> int:
    tries = failed = 0
    memory = Path("/dev/shm")
    rows: dict[str, list[str]] = {how: [] for how in DAMAGES}
    for end in ENDS:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
            whole = prepared(Path(name), end == "killed")
            for backups in (True, False):
                for how in DAMAGES:
                    shares = []
                    for seed in range(first, first + seeds):
                        tries += 1
                        try:
                            shares.append(tried(Path(name), whole, how, backups, random.Random(seed)))
                        except Exception as error:
                            failed += 1
                            print(f"{how}, {end}, seed {seed}: {error!r}", flush=True)
                    low, high = min(shares, default=0), max(shares, default=0)
                    rows[how].append(f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}")
    print("| share of messages kept | clean end, backups | clean end, none | killed, backups | killed, none |")
    print("|---|---|---|---|---|")
    for how, cells in rows.items():
        print(f"| {how} | {' | '.join(cells)} |")
    bound = f", 95 % bound {3 / tries:.2%}" if not failed else ""
    print(f"damage: {tries:,} starts with files damaged in {len(DAMAGES)} ways, {failed} failed{bound}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
