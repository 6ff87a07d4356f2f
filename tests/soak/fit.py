"""What a model is said to need, against what llama.cpp takes: every architecture in tests/models/sparse.py.

A command: ``python -m tests.soak.fit [CONTEXTS…]``; 512, 2,048 and 8,192 tokens, each with a KV cache of f16 and q8_0.
The models have real shapes and empty weights. Prints a line for needs with llama.cpp's own dry run, as before a load:
what, how many, how many failed, the 95 % bound, and the largest difference; and one for the plain estimate of lists.
"""

import json
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.models.memory import fit_child
from tests.models.memory.needs import need
from tests.models.sparse import MODELS, write_sparse

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.dry_run import DryRun
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import KvType

WITHIN = 0.05
KINDS: tuple[KvType, ...] = ("f16", "q8_0")


def main(*contexts: int) -> int:
    """Compares; returns 1 if a need with a dry run is wrong by more than a twentieth."""
    cases = [(n_ctx, kv) for n_ctx in contexts or (512, 2048, 8192) for kv in KINDS]
    with_dry_run, estimated = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        for model, make in MODELS.items():
            header = read_header(write_sparse(Path(name) / f"{model}.gguf", make()))
            asked = json.dumps([[str(header.path), [(*case, False) for case in cases]]])
            command = [sys.executable, str(fit_child.__file__), asked]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            with closing(DryRun(header.path)) as run:
                for (n_ctx, kv), taken in zip(cases, json.loads(done.stdout)[0], strict=True):
                    graph = run.graph_bytes(ContextOptions(n_ctx=n_ctx, kv=kv))
                    assert graph is not None
                    for found, measured in ((with_dry_run, graph), (estimated, None)):
                        found.append(need(header, n_ctx, kv, measured=measured).total / sum(taken.values()) - 1)
                        if abs(found[-1]) > WITHIN:
                            how = "estimated" if measured is None else "with a dry run"
                            print(f"{model}, {n_ctx} tokens, {kv}, {how}: {found[-1]:+.1%}")
            header.path.unlink()
    failed = 0
    for how, found in (("with a dry run", with_dry_run), ("estimated", estimated)):
        wrong = sum(abs(off) > WITHIN for off in found)
        bound = f", 95 % bound {3 / len(found):.1%}" if not wrong else ""
        print(
            f"fit: {len(MODELS)} models in {len(cases)} contexts, {how}: {wrong} of {len(found)} needs were wrong by"
            f" more than {WITHIN:.0%}{bound}; {max(found, key=abs):+.1%} at most"
        )
        failed += wrong if found is with_dry_run else 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
