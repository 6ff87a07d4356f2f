"""The process that lends this machine's devices with ggml's RPC server.

Run it as ``python -m slipstream.models.llama.lender ENDPOINT THREADS CACHE``; with an empty CACHE, it stores no
weights. The server ends its process on some errors, and serves one borrower at a time. Its standard input is a pipe
that only the supervisor keeps open: when the pipe closes, this process ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from slipstream.models.errors import SlipstreamError


def main() -> None:
    """Serves until the supervisor ends; exits with 1 if it cannot serve."""
    endpoint, threads, cache = sys.argv[1:]
    threading.Thread(target=_end_with_supervisor, name="attend", daemon=True).start()
    try:
        _serve(endpoint, int(threads), cache)
    except SlipstreamError as error:
        print(error, flush=True)
    sys.stdout.flush()
    os._exit(1)


def _serve(endpoint: str, threads: int, cache: str) -> None:
    from llama_cpp import llama_cpp as C

    from slipstream.models.llama.ggml import CPU, GPU, calls, own_gpus, rpc_call

    C.llama_backend_init()
    ggml, gpus = calls(), own_gpus()
    separate = [each for each in gpus if ggml.backend_dev_type(each) == GPU]
    lent = separate or gpus[:1] or [ggml.backend_dev_by_type(CPU)]
    devices = (ctypes.c_void_p * len(lent))(*lent)
    rpc_call("start_server")(endpoint.encode(), os.fsencode(cache) or None, threads, len(lent), devices)


def _end_with_supervisor() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
