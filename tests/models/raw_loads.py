"""Loads files in C with nothing checked before, each in a process of its own that may die: what a crasher is.

A command, used by the soak test: reads paths, one a line; answers ``fine``, ``refused``, ``hung`` or the signal's name
and llama.cpp's last words.
"""

import os
import resource
import signal
import sys
import tempfile
import time
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.llama.library import model_params

SECONDS: Final = 10.0
_TEXT: Final = "Hello, the world \u20ac \U0001f600 of 1234!\n\x00\xff".encode()
_LAST_WORDS: Final = ("GGML_ASSERT", "GGML_ABORT", "terminate called", "what()", "fatal", "Error")


def load(path: str) -> int:
    """Loads a file, tokenizes and decodes a few tokens; 0 if that works, 1 if llama.cpp refuses it."""
    params = model_params()
    params.n_gpu_layers = 0
    model = C.llama_model_load_from_file(path.encode(), params)
    if not model:
        return 1
    options: Any = C.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.n_threads = options.n_threads_batch = 1
    context = C.llama_init_from_model(model, options)
    if not context:
        return 1
    vocabulary = C.llama_model_get_vocab(model)
    tokens = (C.llama_token * 64)()
    count = C.llama_tokenize(vocabulary, _TEXT, len(_TEXT), tokens, 64, True, True)
    if count <= 0:
        return 1
    for token in tokens[:count]:
        C.llama_token_to_piece(vocabulary, token, C.ctypes.create_string_buffer(64), 64, 0, True)
    return int(C.llama_decode(context, C.llama_batch_get_one(tokens, min(count, 8))) != 0)


def outcome(path: str) -> str:
    """Loads a file in a child and says what became of it."""
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if not child:
            os.dup2(log.fileno(), 2)
            os.dup2(log.fileno(), 1)
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            os._exit(load(path))
        ends = time.monotonic() + SECONDS
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hung"
            time.sleep(0.001)
        if os.WIFEXITED(status):
            return "refused" if os.WEXITSTATUS(status) else "fine"
        log.seek(0)
        lines = log.read()[-8192:].decode("utf-8", "replace").splitlines()
        told = [line.strip()[:200] for line in lines if any(mark in line for mark in _LAST_WORDS)]
        return f"{signal.Signals(os.WTERMSIG(status)).name} {told[-1] if told else ''}"


def main() -> None:
    os.environ["GGML_NO_BACKTRACE"] = "1"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    C.llama_backend_init()
    for line in sys.stdin:
        print(outcome(line.rstrip("\n")), flush=True)


if __name__ == "__main__":
    main()
