"""Other engines' processes: what they answer, what is missing, what dies."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.peers import llama_server, serving
from tests.bench.peers.choice import PeerChoice
from tests.bench.peers.engines import ENGINES, Engine
from tests.bench.peers.process import PeerError, PeerProcess
from tests.bench.peers.sweep import Timing, rate

from slipstream.models.errors import UsageError

ANSWERING = """
import os, sys
class Fake:
    version, build = "1.0", "test"
    def open(self, **arguments):
        os.write(1, b"a C library prints\\n")
        return {}
    def generate(self, prompt, tokens):
        if prompt == [13]:
            print("bad luck", file=sys.stderr, flush=True)
            os._exit(3)
        if prompt == [14]:
            raise ValueError("two\\nlines")
        return {"tokens": tokens, "seconds": 0.5, "wall": 1.0, "text": str(prompt), "drafted": None, "accepted": None}
engine = Fake
"""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[PeerProcess]:
    file = tmp_path / "fake.py"
    file.write_text(ANSWERING)
    process = PeerProcess("fake", file)
    yield process
    process.close()


def test_a_peer_answers_whatever_its_libraries_print(fake: PeerProcess) -> None:
    assert (fake.version, fake.build) == ("1.0", "test")
    assert fake.ask("open") == {}
    answer = Timing.of(fake.ask("generate", prompt=[1, 2], tokens=5), "fake")
    assert answer == Timing(5, 0.5, 1.0, "[1, 2]", None, None)


def test_a_refusal_is_one_line_and_the_peer_lives_on(fake: PeerProcess) -> None:
    with pytest.raises(PeerError, match=r"^fake refuses: ValueError: two lines\.$"):
        fake.ask("generate", prompt=[14], tokens=1)
    assert fake.alive and fake.ask("generate", prompt=[1], tokens=1)["tokens"] == 1


def test_a_peer_that_dies_says_its_last_words_each_time_it_is_asked(fake: PeerProcess) -> None:
    for _ in range(2):
        with pytest.raises(PeerError, match=r"^fake died: bad luck \(exit code 3\)\.$"):
            fake.ask("generate", prompt=[13], tokens=1)
    assert not fake.alive


def test_a_peer_that_hangs_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "hanging.py"
    file.write_text("import time\ndef engine(): time.sleep(600)\n")
    with pytest.raises(PeerError, match="hanging gave no answer for 0 s"):
        PeerProcess("hanging", file, patience=0.2)


def test_a_missing_package_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    file = tmp_path / "missing.py"
    file.write_text(Path(llama_server.__file__).read_text().replace('"xllamacpp"', '"no_such_package"'))
    with pytest.raises(
        PeerError, match=r"llama-server is not installed: .*No module named 'no_such_package'"
    ) as caught:
        PeerProcess("llama-server", file, install=ENGINES["llama-server"].install)
    assert "pip install xllamacpp" in caught.value.hint and "--peer-python" in caught.value.hint


def test_an_interpreter_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"nowhere/python cannot be started: no such file") as caught:
        PeerProcess("llama-server", tmp_path / "any.py", python="/nowhere/python")
    assert "--peer-python" in caught.value.hint


def test_a_file_that_breaks_while_it_is_read_is_a_dead_peer(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def engine(): raise RuntimeError('no device')\n")
    with pytest.raises(PeerError, match="broken died: RuntimeError: no device"):
        PeerProcess("broken", file)


def test_requests_are_served_until_they_end(tmp_path: Path) -> None:
    file = tmp_path / "fake.py"
    file.write_text(ANSWERING)
    asked = [{"do": "generate", "prompt": [7], "tokens": 2}, {"do": "nothing"}]
    answers = io.StringIO()
    serving.serve(str(file), io.StringIO("".join(json.dumps(one) + "\n" for one in asked)), answers)
    hello, reply, refused = map(json.loads, answers.getvalue().splitlines())
    assert hello == {"version": "1.0", "build": "test"} and reply["text"] == "[7]"
    assert refused["refused"].startswith("AttributeError")


SERVED: dict[str, Any] = {
    "choices": [{"text": "Hi there"}],
    "timings": {"prompt_n": 8, "prompt_ms": 6.7, "predicted_n": 96, "predicted_ms": 475.0},
}


def test_the_servers_first_token_comes_with_the_prompt_and_is_not_timed() -> None:
    found = Timing.of(llama_server.timed(SERVED, 0.6), "llama-server")
    assert found == Timing(95, 0.475, 0.6, "Hi there", 0, 0)
    assert rate([found]) == pytest.approx(200.0)


def test_the_servers_drafts_are_read() -> None:
    timings = {**SERVED["timings"], "draft_n": 62, "draft_n_accepted": 31}
    found = Timing.of(llama_server.timed({**SERVED, "timings": timings}, 0.6), "llama-server")
    assert (found.drafted, found.accepted) == (62, 31)


def test_a_servers_error_is_refused_in_its_own_words() -> None:
    with pytest.raises(RuntimeError, match="context is full"):
        llama_server.timed({"error": {"message": "context is full"}}, 0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": -1}, {"tokens": "many"}, {"seconds": float("nan")}, {"seconds": -0.1}, {"text": 1, "wall": None}],
)
def test_timings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    answer = {"tokens": 5, "seconds": 1.0, "wall": 1.0, "text": "", "drafted": None, "accepted": None}
    with pytest.raises(PeerError, match="fake gave no timings"):
        Timing.of(answer | wrong, "fake")


def test_an_answer_without_timings_is_refused() -> None:
    with pytest.raises(PeerError, match="fake gave no timings: KeyError: 'drafted'"):
        Timing.of({"tokens": 1}, "fake")


class Params:
    """Takes the settings that it has, like the package's own classes."""

    def __init__(self) -> None:
        self.model, self.cpuparams, self.cpuparams_batch = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
        draft = SimpleNamespace(n_max=3, p_min=0.0, mparams=SimpleNamespace())
        draft.cpuparams, draft.cpuparams_batch = SimpleNamespace(), SimpleNamespace()
        self.speculative = SimpleNamespace(draft=draft, types=["NONE"], ngram_mod=SimpleNamespace(n_match=24))


class Named(dict[str, str]):
    """An enumeration, by name."""

    def __missing__(self, name: str) -> str:
        return name


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> tuple[llama_server.LlamaServer, list[Any]]:
    """The server of a package that only notes what it is started with."""
    started: list[Any] = []
    package = SimpleNamespace(
        __version__="9",
        get_system_info=lambda: "CPU ",
        CommonParams=Params,
        Server=started.append,
        ggml_type=Named(),
        llama_flash_attn_type=Named(),
        common_speculative_type=Named(),
    )
    monkeypatch.setitem(sys.modules, llama_server.PACKAGE, package)
    return llama_server.LlamaServer(), started


def opened(drafter: str, **settings: float) -> dict[str, Any]:
    return {
        "model": "a.gguf",
        "draft_model": "b.gguf",
        "n_ctx": 512,
        "kv": "q8_0",
        "flash": True,
        "threads": 3,
        "temperature": 0.0,
        "drafter": drafter,
        "settings": settings,
    }


def test_the_server_is_started_as_it_was_asked_for(server: tuple[llama_server.LlamaServer, list[Any]]) -> None:
    engine, started = server
    engine.open(**opened("draft", n_max=8, p_min=0.75))
    engine.open(**opened("ngram-mod", n_match=4))
    engine.open(**opened("none"))
    draft, ngram, plain = started
    assert draft.model.path == "a.gguf" and draft.n_ctx == 512 and draft.cache_type_k == "GGML_TYPE_Q8_0"
    assert draft.cpuparams.n_threads == draft.speculative.draft.cpuparams_batch.n_threads == 3
    assert draft.flash_attn_type == "LLAMA_FLASH_ATTN_TYPE_ENABLED"
    assert draft.speculative.types == ["COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE"]
    own = draft.speculative.draft
    assert (own.mparams.path, own.n_max, own.p_min) == ("b.gguf", 8, 0.75)
    assert ngram.speculative.types == ["COMMON_SPECULATIVE_TYPE_NGRAM_MOD"]
    assert ngram.speculative.ngram_mod.n_match == 4 and ngram.speculative.draft.n_max == 3
    assert plain.speculative.types == ["NONE"]


def test_the_server_draws_at_the_temperature_it_was_opened_with(
    server: tuple[llama_server.LlamaServer, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def completed(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return SERVED

    running = SimpleNamespace(handle_completions=completed)
    monkeypatch.setattr(sys.modules[llama_server.PACKAGE], "Server", lambda _params: running)
    engine, _ = server
    for temperature in (0.8, 0.0):
        engine.open(**{**opened("none"), "temperature": temperature})
        engine.generate([1, 2], 5)
    warm, greedy = asked
    assert (warm["temperature"], warm["top_k"], warm["top_p"], warm["min_p"]) == (0.8, 40, 0.95, 0.05)
    assert (greedy["temperature"], greedy["top_k"], greedy["samplers"]) == (0, 1, ["top_k"])


def test_a_setting_that_the_server_has_not_is_refused(server: tuple[llama_server.LlamaServer, list[Any]]) -> None:
    engine, started = server
    with pytest.raises(AttributeError, match="n_magic"):
        engine.open(**opened("ngram-mod", n_magic=1))
    assert not started


def test_engines_are_chosen_by_name() -> None:
    assert PeerChoice.of([], None) == PeerChoice.of(["all"], None) == PeerChoice(tuple(ENGINES), sys.executable)
    assert PeerChoice.of(["llama.cpp", "llama.cpp"], "py") == PeerChoice(("llama.cpp",), "py")
    assert PeerChoice.of(["llama-server:draft"], "py").names == ("llama-server:draft",)
    for wrong, said in (("vllm", "no engine 'vllm'"), ("vllm:draft", "no engine 'vllm'"), ("llama.cpp:x", "no 'x'")):
        with pytest.raises(UsageError, match=f"{said} to measure"):
            PeerChoice.of([wrong], None)


def test_one_kind_of_an_engines_drafting_is_measured_beside_plain_decoding() -> None:
    whole, part = Engine.named("llama-server"), Engine.named("llama-server:draft")
    assert whole is ENGINES["llama-server"] and set(part.groups) == {"plain", "draft"} < set(whole.groups)
    assert part.groups["draft"] == whole.groups["draft"] and Engine.named("llama.cpp:plain").groups.keys() == {"plain"}


def test_a_draft_models_settings_cover_short_and_long_drafts_with_and_without_a_floor() -> None:
    tried = [dict(variant.settings) for variant in ENGINES["llama-server"].groups["draft"]]
    assert {setting["n_max"] for setting in tried} >= {2, 4, 8, 16}
    assert {setting["p_min"] for setting in tried} >= {0.0, 0.5, 0.75}
