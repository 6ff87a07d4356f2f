"""What is known of the llama.cpp library in this process before it is used."""

import os
import subprocess
import sys
from copy import copy
from pathlib import Path

import llama_cpp as C
import pytest
from tests.drafters.changed_file import changed

from slipstream.models import BLAS_THREADS, SPIN_COUNT
from slipstream.models.errors import ModelFileError
from slipstream.models.llama.library import loses_tiles, process_log, run_pass
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement

AMX = "flags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8 flush_l1d"


def made_by(*compilers: str) -> bytes:
    return b"\x7fELF\0" + b"\0".join(name.encode() for name in compilers) + b"\0.symtab"


@pytest.mark.parametrize(
    ("compiler", "wrong"),
    [
        ("GCC: (Debian 10.2.1-6) 10.2.1 20210110", True),
        ("GCC: (GNU) 11.4.0", True),
        ("GCC: (GNU) 11.5.0", False),
        ("GCC: (Debian 12.2.0-14) 12.2.0", True),
        ("GCC: (GNU) 12.4.0", False),
        ("GCC: (Ubuntu 13.2.0-23ubuntu4) 13.2.0", True),
        ("GCC: (Ubuntu 13.3.0-6ubuntu2) 13.3.0", False),
        ("GCC: (GNU) 14.1.0", False),
        ("GCC: (GNU) 7.5.0", False),  # knows no AMX
        ("clang version 12.0.1", False),
        ("", False),
    ],
)
def test_amx_is_avoided_where_the_compiler_lost_the_tiles(compiler: str, wrong: bool) -> None:
    assert loses_tiles(AMX, made_by(compiler)) is wrong
    assert not loses_tiles("flags\t\t: fpu avx2 avx512f amx_tile", made_by(compiler))
    assert not loses_tiles("", made_by(compiler))


def test_one_wrong_compiler_among_several_is_enough() -> None:
    assert loses_tiles(AMX, made_by("GCC: (GNU) 13.3.1", "GCC: (GNU) 12.2.0"))
    assert not loses_tiles(AMX, made_by("GCC: (GNU) 13.3.1", "GCC: (GNU) 14.2.0"))


def test_what_is_listened_to_is_not_printed_and_its_warnings_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, broken = process_log(), tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    log.lines.clear()
    with log.listening() as outer:
        with log.listening() as inner:
            assert not C.llama_model_load_from_file(os.fsencode(broken), C.llama_model_default_params())
        assert inner and not outer
        assert not C.llama_model_load_from_file(os.fsencode(broken), C.llama_model_default_params())
        assert outer
    assert log.reason() and not capsys.readouterr().err
    assert not C.llama_model_load_from_file(os.fsencode(broken), C.llama_model_default_params())
    assert capsys.readouterr().err


def spin_count(**environment: str) -> str:
    """What libgomp would read after slipstream's models are imported."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, slipstream.models; print(os.environ.get('GOMP_SPINCOUNT', 'unset'))"
    done = subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True)
    return done.stdout.strip()


def test_threads_wait_briefly_unless_their_owner_says_otherwise() -> None:
    assert spin_count() == SPIN_COUNT
    assert spin_count(GOMP_SPINCOUNT="7") == "7"
    assert spin_count(OMP_WAIT_POLICY="passive") == "unset"


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_products_of_numpy_leave_no_thread_that_spins_beside_the_model() -> None:
    code = "import slipstream.app.bench.intervals, numpy, os; numpy.ones((4000, 99)) @ numpy.ones((99, 4));"
    code += "print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True)
    assert done.stdout.split() == [BLAS_THREADS, "1"]


def test_passes_that_a_device_replays_are_counted() -> None:
    """The first of three equal passes runs node by node, the second one is captured, the third one is replayed."""
    log = process_log()
    before = copy(log.passes)
    eager: list[bytes] = []
    captured = [b"CUDA Graph id 7 reused\n", b"ggml_backend_cuda_graph_compute: CUDA graph warmup complete\n"]
    replayed = [b"CUDA Graph id 7 reused\n"]
    with log.listening() as heard:
        for lines in (eager, captured, replayed):

            def decode(_context: None, _batch: None, lines: list[bytes] = lines) -> int:
                for line in lines:
                    log.callback(1, line, None)
                return 0

            assert run_pass(decode, None, None) == 0
    passes = log.passes.since(before)
    assert (passes.total, passes.replayed) == (3, 1)
    assert not heard  # a line for each pass would fill it


def test_llama_cpps_reason_is_passed_on_whole_with_what_helps(tmp_path: Path) -> None:
    bundled = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
    file = changed(bundled, tmp_path / "changed.gguf", {"tokenizer.ggml.pre": "brand-new-bpe"})
    with process_log().listening(), pytest.raises(ModelFileError) as refused:
        LlamaModel(file, placement=Placement(0))
    assert "unknown pre-tokenizer type: 'brand-new-bpe'" in refused.value.title
    assert "newer llama.cpp" in refused.value.hint


LOAD = "llama_model_load: error loading model: "
LAST = "llama_model_load_from_file_impl: failed to load model"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{LOAD}unknown model architecture: 'newer'", LAST], "unknown model architecture: 'newer'"),
        (
            [f"{LOAD}error loading model hyperparameters: key not found in model: llama.eps", LAST],
            "error loading model hyperparameters: key not found in model: llama.eps",
        ),
        (
            [f"{LOAD}check_tensor_dims: tensor 'a.b' has wrong shape; expected 1, 2, got 3: see above", LAST],
            "check_tensor_dims: tensor 'a.b' has wrong shape; expected 1, 2, got 3: see above",
        ),
        (
            ["alloc: failed to allocate buffer of size 9", f"{LOAD}unable to allocate CPU buffer", LAST],
            "unable to allocate CPU buffer",
        ),
        (["gguf_init_from_file_impl: invalid magic characters: 'abcd'", LAST], "invalid magic characters: 'abcd'"),
        ([LAST], LAST),
        ([], ""),
    ],
)
def test_a_reason_keeps_all_its_parts(lines: list[str], reason: str) -> None:
    log = process_log()
    log.lines.clear()
    log.lines.extend(lines)
    assert log.reason().endswith(reason) and LOAD not in log.reason()
    log.lines.clear()
