"""What a peer's process runs: one engine's file, a JSON object a line in and out.

It is started by its path, perhaps by another Python that has no slipstream, so it imports nothing of slipstream;
nor does the file of an engine that did not come with slipstream.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any, TextIO


def serve(engine_file: str, requests: TextIO, answers: TextIO) -> None:
    """Answers requests until they end.

    Args:
        engine_file: A file with a function ``engine()`` that makes an object with ``version`` and ``build``, texts, and
            the methods ``open`` and ``generate``.
        requests: A line each: what to ``do`` and its arguments.
        answers: First ``version`` and ``build``, or ``missing`` where a package is; then to each request what the
            method returned, or ``refused`` and why.
    """

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        engine = runpy.run_path(engine_file)["engine"]()
    except ImportError as error:
        say({"missing": str(error)})
        return
    say({"version": engine.version, "build": engine.build})
    for line in requests:
        asked = json.loads(line)
        try:
            say(getattr(engine, asked.pop("do"))(**asked))
        except Exception as error:  # an engine refuses with any exception that it likes
            say({"refused": " ".join(f"{type(error).__name__}: {error}".split())})


if __name__ == "__main__":
    del sys.path[0]  # this folder: its names are no packages
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # no printf of a C library may break a line
    serve(sys.argv[1], sys.stdin, ours)
    ours.flush()
    os._exit(0)  # no engine's threads or destructors have a say in it
