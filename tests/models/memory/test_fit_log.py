"""What is estimated against what llama.cpp logs: models of nine architectures, four contexts each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.memory.needs import need
from tests.models.sparse import MODELS, write_sparse

from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.llama.dry_run import DryRun
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import KvType

CASES: tuple[tuple[int, KvType], ...] = ((512, "f16"), (2048, "f16"), (4096, "q8_0"), (1024, "q4_0"))
WITHIN = 0.05

Logged = dict[tuple[str, int], dict[str, int]]


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Header]:
    folder = tmp_path_factory.mktemp("sparse")
    return {name: read_header(write_sparse(folder / f"{name}.gguf", make())) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def logged(headers: dict[str, Header]) -> Logged:
    asked = json.dumps([[str(header.path), [(*case, False) for case in CASES]] for header in headers.values()])
    command = [sys.executable, str(Path(__file__).with_name("fit_child.py")), asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return {
        (name, n_ctx): answer
        for name, each in zip(headers, answers, strict=True)
        for (n_ctx, _), answer in zip(CASES, each, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(("n_ctx", "kv"), CASES)
@pytest.mark.parametrize("name", MODELS)
def test_need_is_what_it_takes(name: str, n_ctx: int, kv: KvType, headers: dict[str, Header], logged: Logged) -> None:
    counted, taken = need(headers[name], n_ctx, kv), logged[name, n_ctx]
    assert counted.total == pytest.approx(sum(taken.values()), rel=WITHIN)
    assert counted.weights == pytest.approx(taken["weights"], rel=0.01)
    assert counted.kv == pytest.approx(taken["kv"], rel=0.01, abs=1 << 14)  # the log gives hundredths of a MiB
    assert counted.compute == pytest.approx(taken["compute"], rel=0.3)


@pytest.mark.parametrize("name", MODELS)
def test_a_dry_run_knows_the_buffer_exactly(name: str, headers: dict[str, Header], logged: Logged) -> None:
    header = headers[name]
    run = DryRun(header.path)
    for n_ctx, kv in CASES:
        options = ContextOptions(n_ctx=n_ctx, kv=kv)
        graph = run.graph_bytes(options)
        assert graph is not None
        logits = 4 * options.max_rows * header.n_vocab
        assert graph + logits == pytest.approx(logged[name, n_ctx]["compute"], abs=1 << 20)  # of 16 roundings of 0.01
    run.close()


def test_scores_and_draft_models_are_counted_too(headers: dict[str, Header]) -> None:
    header = headers["llama-1b"]
    run = DryRun(header.path)
    taken = run.graph_bytes(ContextOptions(n_ctx=4096, flash=False))
    run.close()
    assert taken is not None
    assert need(header, 4096, flash=False).compute == pytest.approx(taken + 4 * 64 * header.n_vocab, rel=WITHIN)
    target, draft = headers["qwen3-4b"], headers["qwen3-0.6b"]
    both, alone = need(target, 4096, draft=draft), need(target, 4096)
    small = need(draft, 4096, leaves=4)
    assert both.total == alone.total + small.total
