"""What is known of the llama.cpp library in this process before it is used."""

import os
import subprocess
import sys
from contextlib import closing
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from llama_cpp import llama_cpp as C
from tests.drafters.changed_file import changed

from slipstream.drafters import registry
from slipstream.drafters.registry import METHODS, why_not
from slipstream.drafters.resources import Resources
from slipstream.models import BLAS_THREADS, SPIN_COUNT
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.probe import SHIPPED
from slipstream.models.llama import hidden
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.hidden import SYMBOLS, find_symbols
from slipstream.models.llama.install import broken_install
from slipstream.models.llama.library import loses_tiles, process_log, run_pass
from slipstream.models.llama.memory import open_context
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN

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


def test_what_is_heard_is_not_printed_but_warnings_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert spin_count() == SPIN_COUNT and spin_count(GOMP_SPINCOUNT="7") == "7"
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


@pytest.mark.parametrize(
    ("key", "value", "reason", "hint"),
    [
        ("tokenizer.ggml.pre", "brand-new-bpe", "unknown pre-tokenizer type: 'brand-new-bpe'", "A newer llama.cpp"),
        ("llama.block_count", 9, "wrong number of tensors", "Fetch the file again, or get another conversion"),
    ],
)
def test_llama_cpps_reason_is_passed_on_whole_with_what_helps(
    key: str, value: str | int, reason: str, hint: str, tmp_path: Path
) -> None:
    bundled = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
    file = changed(bundled, tmp_path / "changed.gguf", {key: value})
    with process_log().listening(), pytest.raises(ModelFileError) as refused:
        LlamaModel(file, placement=Placement(0))
    assert reason in refused.value.title and refused.value.hint.startswith(hint)


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
        (
            ["alloc: 9 MiB on device 0: cudaMalloc failed", f"{LOAD}unable to allocate CUDA0 buffer", LAST],
            "9 MiB on device 0: cudaMalloc failed: unable to allocate CUDA0 buffer",
        ),
        (
            [
                "clip_init: failed to load model 'x': unable to find tensor v.b",
                "mtmd: Failed to load CLIP model from x",
            ],
            "unable to find tensor v.b: mtmd: Failed to load CLIP model from x",
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


def test_a_context_that_llama_cpp_refuses_is_no_lack_of_memory() -> None:
    model = LlamaModel(SHIPPED / "slipstream-mini-q8_0.gguf")
    params = C.llama_context_default_params()
    params.type_v, params.flash_attn_type = C.GGML_TYPE_Q8_0, C.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with (
        closing(model),
        pytest.raises(SlipstreamError, match=r"cannot open a context of \d+ tokens: .*V cache") as refused,
    ):
        open_context(model, params)
    assert "memory" not in refused.value.title


FAILED = "RuntimeError: Failed to load shared library '/p/llama_cpp/lib/{}': "


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ModuleNotFoundError: No module named 'llama_cpp'", "missing", "not installed"),
        (FAILED.format("libllama.so") + "libvulkan.so.1: cannot open shared object file: No such file or directory",
         "library", "libvulkan.so.1 (the Vulkan loader)"),
        (FAILED.format("libllama.so") + "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /p/libllama.so)",
         "system", "GLIBC_2.38"),
        (FAILED.format("libllama.so") + "/p/libllama.so: wrong ELF class: ELFCLASS32", "architecture", "another kind"),
        (FAILED.format("libllama.dylib") + "dlopen(/p/libllama.dylib, 0x0006): tried: '/p/libllama.dylib' (mach-o file,"
         " but is an incompatible architecture (have 'x86_64', need 'arm64'))", "architecture", "another kind"),
        (FAILED.format("libllama.dylib") + "dlopen(/p/libllama.dylib, 6): Library not loaded: /opt/lib/libomp.dylib",
         "library", "libomp.dylib (the OpenMP runtime)"),
        (FAILED.format("llama.dll") + "[WinError 193] %1 is not a valid Win32 application", "architecture", "another"),
        (FAILED.format("llama.dll") + r"Could not find module 'C:\llama.dll' (or one of its dependencies).", "library",
         "a library that this machine does not have"),
        (FAILED.format("libllama.so") + "/p/libllama.so: file too short", "damaged", "/p/libllama.so: file too short"),
        (FAILED.format("libllama.so") + "/p/libggml.so: undefined symbol: ggml_x: see y", "damaged",
         "/p/libggml.so: undefined symbol: ggml_x: see y"),
        (FAILED.format("libllama.so") + "libllama.so: cannot enable executable stack as shared object requires: Invalid"
         " argument", "damaged", "cannot enable executable stack as shared object requires: Invalid argument"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_told_apart(said: str, kind: str, words: str) -> None:
    found = broken_install(f'Traceback (most recent call last):\n  File "x.py", line 1\n{said}\n')
    assert found and found.kind == kind and words in found.what
    assert "llama-cpp-python==" in found.cure and not found.what.endswith(".")


@pytest.mark.parametrize("code", [-4, 132, 0xC000001D])
def test_an_illegal_instruction_is_told_by_the_exit_code(code: int) -> None:
    found = broken_install("", code)
    assert found and found.kind == "processor" and "-DGGML_NATIVE=on" in found.cure


@pytest.mark.parametrize("said", ["", "ModuleNotFoundError: No module named 'numpy'", "RuntimeError: CUDA error"])
def test_other_failures_are_none_of_it(said: str) -> None:
    assert broken_install(said) is None


class Library:
    def __init__(self, *names: str) -> None:
        for name in names:
            setattr(self, name, SimpleNamespace())


def test_this_library_has_them_all() -> None:
    names = ("set_layer_input", "get_layer_input", "set_features", "get_features")
    assert SYMBOLS.lacking(*names) == ""
    assert find_symbols(C._lib) == SYMBOLS


@pytest.mark.parametrize(
    "name",
    [
        "llama_get_embeddings_nextn",
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ],
)
def test_each_compilers_name_is_found(name: str) -> None:
    found = find_symbols(Library(name))
    assert found.get_features is not None and len(found.get_features.argtypes) == 1
    assert found.lacking("get_features") == ""
    assert found.lacking("set_features", "get_features") == (
        "this build of llama.cpp does not export llama_set_embeddings_nextn"
    )


def test_methods_whose_calls_are_missing_say_so_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SHIPPED / "slipstream-mini-q8_0.gguf"
    with closing(LlamaModel(path)) as model:
        with closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
            before = {name: why_not(name, Resources(target.abilities, llama=target)) for name in METHODS}
        for module in (hidden, registry):
            monkeypatch.setattr(module, "SYMBOLS", find_symbols(Library()))
        with closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
            assert target.abilities.hidden == {LAST_HIDDEN}
            after = {name: why_not(name, Resources(target.abilities, llama=target)) for name in METHODS}
            target.prefill([1, 2, 3])
            assert target.evaluate(4).logits.shape == (1, model.n_vocab)
    changed = {name for name in METHODS if after[name] != before[name]}
    assert changed == {name for name in METHODS if METHODS[name].calls} >= {"eagle3", "mtp", "dflash"}
    assert all("this build of llama.cpp does not export llama_set_embeddings" in after[name] for name in changed)
