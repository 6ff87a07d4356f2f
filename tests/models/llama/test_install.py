"""What loaders of several systems say of a library that they cannot load."""

import pytest

from slipstream.models.llama.install import broken_install

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
        (FAILED.format("libllama.so") + "/p/libllama.so: file too short", "damaged", "file too short"),
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
