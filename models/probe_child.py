"""The process that loads model files for ``slipstream.models.gguf.probe``: it may crash, hang or run out of memory.

Each line of its input is a JSON list: a model's path, or those of an mmproj file and its model. It answers with ``{}``
or the error, and exits when its input ends.
"""

import json
import math
import os
import queue
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Final

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import check_vocabulary, role_of
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.ggml import own_gpus
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import pass_tokens

TEXT: Final = "Hello, the world \u20ac \U0001f600 of 1234!\n\0 <|im_end|>"
"""Words, digits, a control character, and characters that most vocabularies split into bytes: all kinds of tokens."""
_CPU_SECONDS: Final = 5
_CPU_BYTES: Final = 50_000_000  # file size that adds a second to the limit of processor time
_SPACE: Final = 8 << 30
_LOG_BYTES: Final = 16 << 20
_LARGE: Final = 1 << 30
_TOKENS: Final = 8
_WORK: Final = 20  # an image takes as much computation as a short text in a model of 20 times the mmproj file's size


def probe(path: Path) -> None:
    """Loads a file, tokenizes a text and evaluates its first tokens; a bad file may crash this process."""
    header = read_header(path)
    size = sum(part.stat().st_size for part in header.parts)
    threads = physical_cores() if size > _LARGE else 1
    limit(size, threads)
    with closing(LlamaModel(path, placement=Placement(0), repack=size <= _LARGE)) as model:
        if role_of(header) == "drafter":  # it can only run with its target
            return
        check_vocabulary(header)
        options = ContextOptions(n_ctx=min(256, model.n_ctx_train), max_rows=8, max_leaves=1, threads=threads)
        with closing(LlamaTarget(model, options)) as target:
            tokens = [*model.opening(), *model.tokenize(TEXT, True), *model.tokenize(TEXT, False)]
            model.pieces(tokens)
            model.special_names()
            target.prefill(tokens[:_TOKENS])
            target.evaluate(tokens[-1])


def probe_projector(path: Path, model: Path) -> None:
    """Loads an mmproj file with its model and encodes an image; see ``probe``."""
    from slipstream.models.vision.projector import Projector

    size = sum(part.stat().st_size for part in read_header(model).parts) + _WORK * path.stat().st_size
    threads = physical_cores()
    limit(size, threads)
    with (
        closing(LlamaModel(model, placement=Placement(0), repack=False)) as text,
        closing(Projector(path, text, pass_tokens(True), gpu=False, threads=threads)) as projector,
    ):
        projector.try_out()


def limit(size: int, threads: int) -> None:
    """Limits processor time for a file of ``size`` bytes, and address space too, unless a GPU driver needs more."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + threads * (_CPU_SECONDS + size / _CPU_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), most))
    if sys.platform == "linux" and not own_gpus():
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        space = _SPACE + 2 * size
        resource.setrlimit(resource.RLIMIT_AS, (space if most == resource.RLIM_INFINITY else min(space, most), most))


def _harden() -> None:
    """Forbids core files and long logs, and lets the system kill this process first when memory runs out."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, _LOG_BYTES))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _listen(requests: IO[bytes], wanted: queue.SimpleQueue[list[str]]) -> None:
    """Reads requests in a thread, so that this process exits with its parent even while C code runs."""
    for line in requests:
        wanted.put(json.loads(line))
    os._exit(0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep printf of C libraries out of the answers
    _harden()
    wanted: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, wanted), daemon=True).start()
    while True:
        files, answer = wanted.get(), {}
        try:
            if len(files) > 1:
                probe_projector(*map(Path, files))
            elif files:  # the first request is empty and checks that the process runs
                probe(Path(files[0]))
        except SlipstreamError as error:
            answer = {"title": error.title, "hint": error.hint, "file": isinstance(error, ModelFileError)}
        except (MemoryError, OSError) as error:
            title = f"{files[0]} cannot be checked: {error!r}."
            answer = {"title": title, "hint": "Close other programs.", "file": False}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
