"""The lists of architectures against llama.cpp: what each memory takes back, of every architecture that it knows."""

import ctypes
from typing import Any

import pytest
from llama_cpp import llama_cpp as C

from slipstream.models.gguf.architectures import NO_ROLLBACK, ROLLS_BACK

_NAME = "_Z13llm_arch_name8llm_arch"
_KEEPS = "_Z29llm_arch_supports_rs_rollbackRK8llm_arch"
_RECURRENT = ("_Z21llm_arch_is_recurrentRK8llm_arch", "_Z18llm_arch_is_hybridRK8llm_arch")


@pytest.mark.skipif(not hasattr(C._lib, _NAME), reason="this build exports no C++ names")
def test_the_lists_are_those_of_llama_cpp() -> None:
    name_of, keeps, *recurrent = (getattr(C._lib, name) for name in (_NAME, _KEEPS, *_RECURRENT))
    name_of.restype = ctypes.c_char_p
    for call in (keeps, *recurrent):
        call.restype = ctypes.c_bool
    rolls_back, no_rollback, number = set[str](), set[str](), 0
    while (name := name_of(number)) and name != b"unknown" and number < 1000:
        architecture: Any = ctypes.c_int(number)
        if keeps(ctypes.byref(architecture)):
            rolls_back.add(name.decode())
        elif any(call(ctypes.byref(architecture)) for call in recurrent):
            no_rollback.add(name.decode())
        number += 1
    assert number > 100
    assert frozenset(rolls_back) == ROLLS_BACK
    assert frozenset(no_rollback) == NO_ROLLBACK
