"""Wrong model files by the hundred: the header's checks refuse them in words, and what they miss the probe survives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.mutants import good_files, headers, mutant

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.probe import Prober
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import check_vocabulary

MUTANTS = 500
GROUP = 100
CRASHES = "llama.cpp crashes"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return good_files(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    one = Prober()
    yield one
    one.close()


@pytest.mark.parametrize("first", range(0, MUTANTS, GROUP))
def test_mutants_are_refused_or_survived(first: int, good: list[bytes], prober: Prober, tmp_path: Path) -> None:
    path, refused, tried, crashed = tmp_path / "mutant.gguf", 0, 0, []
    for seed in range(first, first + GROUP):
        path.write_bytes(mutant(good[seed // 2 % len(good)], seed))
        try:
            header = read_header(path)
            check_vocabulary(header)
        except ModelFileError as error:
            assert error.title.isprintable() and str(path) in error.title and error.hint
            refused += 1
            continue
        look_around(header, path.stat().st_size)
        tried += 1
        try:
            prober.check(path)
        except SlipstreamError as error:
            assert error.title.isprintable() and str(path) in error.title and error.hint
            if CRASHES in error.title or "hangs" in error.title:
                crashed.append((seed, error.title))
    assert refused > GROUP // 4 and tried > GROUP // 10
    assert len(crashed) <= 1, crashed


def look_around(header: Header, size: int) -> None:
    assert len(header.tokens) == header.n_vocab or not header.tokens
    assert header.add_bos in (True, False) and header.add_eos in (True, False)
    for token in (header.bos, header.eos):
        assert token is None or 0 <= token < len(header.tokens)
    assert not header.tensors or header.data_offsets[0] + header.weight_bytes <= size


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path: Path, content: bytes, magic: bool) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes((b"GGUF\3\0\0\0" if magic else b"") + content)
    with pytest.raises(ModelFileError):
        read_header(path)


@pytest.mark.slow
@given(headers())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_headers_that_are_framed_well_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(content)
    try:
        header = read_header(path)
    except ModelFileError as error:
        assert error.title.isprintable() and error.hint
    else:
        look_around(header, len(content))
