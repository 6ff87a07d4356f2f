"""``slipstream drafters train``: from the wish to a finished file, over any number of stops."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

from slipstream.app.chats.opening import hold
from slipstream.app.drafters.files import checked, file_in, shown_size
from slipstream.app.drafters.options import SEED
from slipstream.app.drafters.texts import ChosenText, chosen_text
from slipstream.app.first_use import try_first
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths, private_folder
from slipstream.app.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import identity
from slipstream.models.heads_check import METHODS, Method
from slipstream.models.quoting import shown_path


def train(options: argparse.Namespace, paths: Paths) -> int:
    """Trains heads for a model, or goes on with a run of the same command that was stopped.

    Args:
        options: ``method``, ``model``, ``on``, ``tokens``, ``seed``, ``out``.
        paths: Where things are kept.

    Returns:
        The exit code: 0, or 130 if it was interrupted.

    Raises:
        UsageError: If there is no such method, model or text, or the file cannot be the one to write.
        SlipstreamError: If torch is missing, the method cannot serve the model, or the disk is full.
    """
    method = next((known for known in METHODS if known == options.method), None)
    if method is None:
        raise UsageError(f"no heads are trained for {options.method!r}.", f"Methods: {', '.join(METHODS)}.")
    if options.tokens < 1:
        raise UsageError(f"--tokens is {options.tokens}.", "Give the number of tokens to train on.")
    seed = SEED if options.seed is None else options.seed
    if seed < 0:
        raise UsageError(f"--seed is {seed}.", "Give 0 or a larger number.")
    text = chosen_text(options.on, paths)
    header = read_header(Path(choose(paths, options.model).model))
    out = checked(Path(options.out), header, method) if options.out else file_in(paths.heads, header, method)
    work = private_folder(paths.training) / _job_name(method, header, text, options.tokens, seed)
    try:
        with _alone_in(work):
            try_first(header.path, paths)
            return _train(method, header, out, work, text, options.tokens, seed)
    except KeyboardInterrupt:
        print("slipstream: stopped; the same command goes on.", file=sys.stderr)
        return 130


def _train(method: Method, header: Header, out: Path, work: Path, text: ChosenText, tokens: int, seed: int) -> int:
    try:
        from slipstream.drafters.training.heads import Job, train_heads
    except ImportError as error:
        missing = (error.name or "torch").split(".")[0]
        if missing == "slipstream":
            raise
        raise SlipstreamError(
            f"training needs {missing}, which is not installed.", "Install it: pip install 'slipstream[train]'."
        ) from error
    job = Job(method, header.path, out, work, text.kind, tokens, text.folder, text.chats, seed)
    progress = sys.stderr
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # llama.cpp and torch warn between the lines
            found = train_heads(job, lambda line: print(one_line(line), file=progress, flush=True))
        size = out.stat().st_size
    except OSError as error:
        where = shown_path(error.filename or work)
        raise SlipstreamError(
            f"cannot train in {where}: {reason_of(error)}.",
            "Make room or fix its rights, then give the same command again: it goes on.",
        ) from error
    shutil.rmtree(work, ignore_errors=True)
    print(f"{shown_path(out)}: {shown_size(size)}, acceptance by depth {found}")
    return 0


def _job_name(method: Method, header: Header, text: ChosenText, tokens: int, seed: int) -> str:
    """One name for one job: the same command finds its folder again, and another does not."""
    facts = json.dumps([*text.facts(), tokens, seed], sort_keys=True)
    return f"{identity(header)[:16]}-{method}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Holds the folder of a run, which two processes would ruin; an empty one is not left behind."""
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
