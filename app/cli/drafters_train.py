"""``slipstream drafters train``: trains heads; a stopped run can be resumed."""

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from slipstream.app.chats.locking import hold
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.options import SEED
from slipstream.app.cli.streams import notice
from slipstream.app.library.heads_files import checked, file_in, shown_size
from slipstream.app.library.load_request import try_first
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.check import METHODS
from slipstream.models.heads.file import Text, identity
from slipstream.models.heads.matching_heads import TRAINED, TrainedMethod
from slipstream.models.outside import shown_path

Messages = Sequence[Mapping[str, str]]
ALL = "all"
_LOCK = "run.lock"


@dataclass(frozen=True)
class ChosenText:
    """Text to train on."""

    kind: Text
    folder: Path | None = None  # absolute path of a folder
    chats: Mapping[str, Messages] = field(default_factory=dict)  # messages of chats by id


def chosen_text(on: str, paths: Paths) -> ChosenText:
    if on == "answers":
        return ChosenText("answers")
    if on == "chats":
        return ChosenText("chats", chats=_chats(paths))
    folder = Path(on).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"there is no text {on!r} to train on.",
            "Known: answers (what the model itself writes), chats (your own chats), or the path of a folder.",
        )
    return ChosenText("folder", folder.resolve())


def _chats(paths: Paths) -> dict[str, Messages]:
    """The current branch of every chat with a reply, up to the first message without text; by id of the chat."""
    found: dict[str, Messages] = {}
    with closing(ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images)) as store:
        store.listen(notice)
        for chat in sorted(kept.id for kept in store.list_chats()):
            said = [
                {"role": message.role, "content": message.content}
                for message in takewhile(lambda message: message.content.strip(), store.messages(chat))
            ]
            if any(message["role"] == "assistant" for message in said):
                found[chat] = said
    if not found:
        raise UsageError("no chat with a reply is kept yet.", "Chat first, or train on answers or on a folder.")
    return found


def train(options: argparse.Namespace, paths: Paths) -> int:
    """Trains heads for a model, or resumes a stopped run of the same command; returns 130 if it was interrupted."""
    methods = TRAINED if options.method == ALL else tuple(known for known in TRAINED if known == options.method)
    if not methods:
        raise UsageError(f"no heads are trained for {options.method!r}.", f"Methods: {', '.join(TRAINED)}, or {ALL}.")
    if options.tokens < 1:
        raise UsageError(f"--tokens is {options.tokens}.", "Give the number of tokens to train on.")
    seed = SEED if options.seed is None else options.seed
    if seed < 0:
        raise UsageError(f"--seed is {seed}.", "Give 0 or a larger number.")
    if not set(methods) <= set(METHODS) and options.on == "chats":
        raise UsageError(
            f"{methods[-1]} files cannot say which chats they learned from, so nothing would mark them when one is "
            "deleted.",
            "Train it on answers or on a folder, or train medusa, kangaroo or space on your chats.",
        )
    if options.prompts and options.on != "answers":
        raise UsageError("--prompts is for answers, which the model writes.", "Leave out --on.")
    if options.adapter and "space" not in methods:
        raise UsageError("--adapter is for space.", f"Train space, or {ALL}.")
    text = chosen_text(options.on, paths)
    header = read_header(Path(choose(paths, options.model).model))
    outs = _outs(options, methods, header, paths)
    begin, adapter = (
        Path(given).expanduser().absolute() if given else None for given in (options.begin, options.adapter)
    )
    lengths = {chat: sum(len(message["content"]) for message in said) for chat, said in text.chats.items()}
    chosen = [text.kind, str(text.folder), lengths, str(options.prompts), options.tokens, seed]
    facts = json.dumps([*chosen, *[str(begin)] * bool(begin)], sort_keys=True)
    name = f"{identity(header)[:16]}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"  # the same command resumes it
    work = private_folder(paths.training) / name
    try:
        with _alone_in(work):
            try_first(header.path, paths)
            return _train(
                header.path,
                outs=outs,
                work=work,
                text=text.kind,
                tokens=options.tokens,
                folder=text.folder,
                chats=text.chats,
                prompts=Path(options.prompts) if options.prompts else None,
                begin=begin,
                adapter=adapter,
                seed=seed,
            )
    except KeyboardInterrupt:
        notice("stopped; the same command goes on.")
        return 130


def _outs(
    options: argparse.Namespace, methods: Sequence[TrainedMethod], header: Header, paths: Paths
) -> dict[TrainedMethod, Path]:
    if not options.out:
        return {method: file_in(paths.heads, header, method, notice) for method in methods}
    if len(methods) == 1:
        return {methods[0]: checked(Path(options.out), header, methods[0])}
    folder = Path(options.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", f"Give a folder: {ALL} writes a file a method.")
    folder.mkdir(parents=True, exist_ok=True)
    return {method: checked(folder / f"{method}.gguf", header, method) for method in methods}


def _train(model: Path, *, outs: Mapping[TrainedMethod, Path], work: Path, **more: Any) -> int:
    try:
        from slipstream.drafters.training.heads import ANSWERS, HeadsJob, train_heads
    except ImportError as error:
        missing = (error.name or "torch").split(".")[0]
        if missing == "slipstream":
            raise
        raise SlipstreamError(
            f"training needs {missing}, which is not installed.", "Install it: pip install 'slipstream[train]'."
        ) from error
    job = HeadsJob(model, outs, work, **more)
    progress = sys.stderr
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # hides warnings of llama.cpp and torch
            found = train_heads(job, lambda line: print(one_line(line), file=progress, flush=True))
        sizes = {method: out.stat().st_size for method, out in outs.items()}
    except OSError as error:
        where = shown_path(error.filename or work)
        raise SlipstreamError(
            f"cannot train in {where}: {reason_of(error)}.",
            "Make room or fix its rights, then give the same command again: it goes on.",
        ) from error
    for path in work.iterdir():  # answers stay for other methods: they take longest, and little room
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in (ANSWERS, _LOCK):
            path.unlink(missing_ok=True)
    for method, out in outs.items():
        print(f"{shown_path(out)}: {shown_size(sizes[method])}, acceptance by depth {found[method]}")
    return 0


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Locks the folder of a run, which two processes would corrupt; removes it at the end if it is empty."""
    held = work / "run"
    lock, alone = hold(held)
    try:
        if not alone:
            raise UsageError("this training is running already.", "Wait for it, or stop it: the same command goes on.")
        yield
    finally:
        lock.close()
        if alone:
            with suppress(OSError):
                held.with_name(held.name + ".lock").unlink()
                work.rmdir()
