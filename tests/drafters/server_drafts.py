"""What a Python with xllamacpp runs: llama.cpp's own server drafts and replies; its log says each drafted token.

It is started by its path and imports nothing of slipstream: its package brings another build of llama.cpp. A JSON
object is read from the input, the replies' figures are written to the output, and the log goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any


def main() -> None:
    x: Any = import_module("xllamacpp")
    asked = json.load(sys.stdin)
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # no printf of a C library may get into the figures
    params = x.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = asked["model"], asked["n_ctx"], 1
    params.verbosity = 5  # drafted tokens are said at this level
    params.fit_params, params.warmup, params.cache_ram_mib = False, False, 0
    draft = params.speculative.draft
    for cpu in (params.cpuparams, params.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
        cpu.n_threads = 1
    kind = asked["kind"].upper()
    params.speculative.types = [x.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}"]]
    draft.n_max, draft.n_min, draft.p_min = asked["deep"], 0, 0.0
    if asked["head"]:
        draft.mparams.path = asked["head"]
    server = x.Server(params)
    best = {"temperature": 0, "top_k": 1, "samplers": ["top_k"], "cache_prompt": False}
    replies = [
        server.handle_completions({"prompt": prompt, "max_tokens": asked["tokens"], **best})
        for prompt in asked["prompts"]
    ]
    time.sleep(0.3)  # the log is written by a thread of its own
    figures = [
        {
            "text": reply["choices"][0]["text"],
            "drafted": reply["timings"].get("draft_n", 0),
            "accepted": reply["timings"].get("draft_n_accepted", 0),
        }
        for reply in replies
    ]
    json.dump({"version": str(x.__version__), "replies": figures}, ours)
    ours.flush()
    os._exit(0)  # no thread of the server has a say in it


if __name__ == "__main__":
    main()
