"""Opens models as Slipstream does and prints what llama.cpp logs of its buffers; run with one JSON argument.

The log is the process's, so the process is one of its own. Weights stay in the mapped file: with extra buffers those
that are packed anew would count twice, since the log gives the mapped range from the first to the last tensor.
"""

import json
import re
import sys

from llama_cpp import llama_cpp as C

from slipstream.models.llama.library import model_params, process_log
from slipstream.models.llama.target import ContextOptions

_SIZE = r" buffer size = +([\d.]+) MiB"


def sizes(lines: list[str], kind: str) -> int:
    """Bytes of all buffers of one kind that the lines tell of."""
    return round(sum(float(size) for size in re.findall(kind + _SIZE, "".join(lines))) * (1 << 20))


def opened(path: str, cases: list[tuple[int, str, bool]]) -> list[dict[str, int]]:
    params = model_params()
    params.use_extra_bufts = False
    with process_log().listening() as lines:
        model = C.llama_model_load_from_file(path.encode(), params)
    assert model, "".join(lines[-5:])
    weights = sizes(lines, "model")
    recurrent = bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))
    answers = []
    for n_ctx, kv, scores in cases:
        options = ContextOptions(n_ctx=n_ctx, kv=kv, scores=scores)  # type: ignore[arg-type]
        with process_log().listening() as lines:
            context = C.llama_init_from_model(model, options.params(n_ctx, recurrent))
        assert context, "".join(lines[-5:])
        rows = 1 if recurrent else options.max_leaves  # the buffer of logits grows to max_rows when they are asked for
        logits = sizes(lines, "output") * options.max_rows // rows
        kept = sizes(lines, "KV") + sizes(lines, "RS")
        answers.append({"weights": weights, "kv": kept, "compute": sizes(lines, "compute") + logits})
        C.llama_free(context)
    C.llama_model_free(model)
    return answers


if __name__ == "__main__":
    C.llama_backend_init()
    print(json.dumps([opened(path, cases) for path, cases in json.loads(sys.argv[1])]))
