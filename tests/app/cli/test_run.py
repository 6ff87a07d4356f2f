"""``slipstream run`` and its errors, as a shell sees them."""

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.drafters.changed_file import changed
from tests.models.kinds import WIDTH, write_kind
from tests.models.lora_file import write_lora
from tests.models.tiny_mmproj import write_mmproj, write_picture

from slipstream.app.cli.main import main
from slipstream.drafters.registry import METHODS
from slipstream.models.gguf.reader import read_header

pytestmark = pytest.mark.program

BUNDLED = Path(__file__).parents[3] / "models" / "bundled"
TARGET = BUNDLED / "slipstream-mini-q8_0.gguf"


def slipstream(*arguments: str, home: Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", "from slipstream.app.cli.main import main; main()", *arguments], input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, timeout=120,
        env={**os.environ, "SLIPSTREAM_HOME": str(home)},
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    lines = done.stderr.decode().splitlines()
    assert done.returncode == code, done.stderr
    assert done.stdout == b"" and len(lines) == 1, done.stderr
    assert lines[0].startswith("slipstream: ")
    return lines[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    raw = TARGET.read_bytes()
    (folder / "empty.gguf").touch()
    (folder / "text.gguf").write_text("Dear reader, this is not a model.\n" * 100)
    (folder / "cut.gguf").write_bytes(raw[: len(raw) // 2])
    (folder / "folder.gguf").mkdir()
    size = (5).to_bytes(8, "little")
    strange = raw.replace(b"llama.", b"blama.").replace(size + b"llama", size + b"blama")
    (folder / "strange.gguf").write_bytes(strange)
    (folder / "other.gguf").write_bytes(raw.replace(b"\xc4\xa0the", b"\xc4\xa0thy", 1))
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.gguf", ["missing.gguf", "no such file"]),
        ("folder.gguf", ["is a folder"]),
        ("empty.gguf", ["is empty"]),
        ("text.gguf", ["is not a GGUF file", "Dear reader"]),
        ("cut.gguf", ["cut short", "fetch the file again"]),
        ("strange.gguf", ["unknown model architecture", "blama"]),
    ],
)
def test_a_file_that_is_no_model_is_one_clear_line(files: Path, tmp_path: Path, name: str, words: list[str]) -> None:
    line = refused(slipstream("run", "-p", "hi", "-m", str(files / name), home=tmp_path), 1)
    assert all(word in line for word in words), line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-p", "hi", "--drafter", "magic"], ["'magic'", "none, draft, "]),
        (["run", "-p", "hi", "--drafter", "lookup+magic"], ["'magic' (in 'lookup+magic')", "none, draft, "]),
        (["run", "-p", "hi", "--drafter", "draft+lookup|draft"], ["names 'draft' twice"]),
        (["run", "-p", "hi", "--draft-gpu-layers", "-2"], ["draft-gpu-layers is -2"]),
        (["run", "-p", " "], ["the prompt is empty"]),
        (["run"], ["the prompt is empty"]),
        (["run", "-p", "hi", "--temp", "99"], ["temperature is 99", "10"]),
        (["run", "-p", "hi", "--presence-penalty", "-1e308"], ["presence penalty is -1e+308"]),
        (["run", "-p", "hi", "--stop", "---"], ["--stop=-"]),
        (["run", "-p", "hi", "--top-p", "0"], ["top"]),
        (["run", "-p", "hi", "--typical", "0"], ["typical is 0", "above 0"]),
        (["run", "-p", "hi", "--typical", "--temp", "0"], ["typical acceptance", "temperature 0"]),
        (["run", "-p", "hi", "--reasoning", "low"], ["no reasoning level low", "no switch for reasoning"]),
        (["run", "-p", "hi", "--reasoning", "much"], ["--reasoning", "'much'"]),
        (["run", "-p", "hi", "--reasoning-budget", "-7"], ["reasoning_budget is -7"]),
        (["run", "-p", "hi", "--dry", "-1"], ["dry is -1"]),
        (["run", "-p", "hi", "--logit-bias", "the"], ["logit-bias cannot be read from 'the'", "the=-2"]),
        (["run", "-p", "hi", "--logit-bias", "99999999=1"], ["no token 99999999"]),
        (["run", "-p", "hi", "--logit-bias", "a b c d e=1"], ["'a b c d e' is", "tokens of this model, not one"]),
        (["run", "-p", "hi", "--kv-type", "q2"], ["--kv-type", "'q2'"]),
        (["run", "-p", "hi", "--cpu-experts", "2"], ["Slipstream mini has no experts"]),
        (["run", "-p", "hi", "--json-schema", "nowhere.json"], ["cannot read nowhere.json", "no such file"]),
        (["run", "-p", "hi", "--grammar", "x", "--json-schema", "y"], ["not allowed with"]),
        (["run", "-p", "hi", "--max-tokens", "-1"], ["max-tokens is -1"]),
        (["run", "-p", "hi", "-m", "gpt-9"], ["'gpt-9'", "bundled"]),
        (["run", "-p", "hi", "--chat", "../x"], ["cannot be the name of a chat"]),
    ],
)
def test_a_wrong_use_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, line = capfd.readouterr()
    assert ended.value.code == 2 and not out and line.startswith("slipstream: ") and line.count("\n") == 1, line
    assert all(word in line for word in words), line


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["draft", "lookup+draft", "lookup|draft"])
def test_a_draft_model_of_another_vocabulary_writes_the_same_text(files: Path, tmp_path: Path, drafter: str) -> None:
    common = ("run", "-p", "Tell me about the sea", "--seed", "7", "--max-tokens", "40")
    plain = slipstream(*common, "--drafter", "none", home=tmp_path)
    other = slipstream(*common, "--draft-model", str(files / "other.gguf"), "--drafter", drafter, home=tmp_path)
    assert other.returncode == 0, other.stderr
    assert other.stdout == plain.stdout


def test_bytes_that_are_not_utf8_on_stdin_are_one_clear_line(tmp_path: Path) -> None:
    line = refused(slipstream("run", home=tmp_path, stdin=b"abc\xff\xfe"), 2)
    assert "0xff at offset 3" in line


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_is_one_clear_line(tmp_path: Path) -> None:
    line = refused(slipstream("run", home=tmp_path, stdin=b"word " * 3000), 1)
    assert "but the context holds" in line


@pytest.mark.slow
def test_one_seed_gives_one_text_with_every_drafter_from_the_shell(tmp_path: Path) -> None:
    texts = {
        slipstream(
            "run", "-p", "Tell me about the sea", "--seed", "7", "--drafter", name, "--max-tokens", "40", home=tmp_path
        ).stdout
        for name in ("none", "draft", "lookup")
    }
    assert len(texts) == 1 and len(texts.pop().decode().strip()) > 10


@pytest.mark.slow
def test_json_has_an_object_a_step_and_a_summary(tmp_path: Path) -> None:
    done = slipstream(
        "run", "-p", "Tell me about the sea", "--seed", "3", "--json", "--max-tokens", "30", home=tmp_path
    )
    *steps, summary = map(json.loads, done.stdout.decode().splitlines())
    assert all({"text", "tokens", "drafter", "drafted", "accepted", "ms"} <= step.keys() for step in steps)
    assert "".join(step["text"] for step in steps) == summary["text"]
    assert sum(len(step["tokens"]) for step in steps) == summary["tokens"]
    assert summary["done"] in ("stop", "length") and summary["prompt_tokens"] == summary["prefilled_tokens"]
    assert summary["exact"] is True and summary["promise"] == "same_text"
    assert (summary["sampling"]["temperature"], summary["sampling"]["top_k"]) == (0.8, 40)  # as used
    named = ["tok_per_s", "acceptance", "tokens_per_step", "speedup", "ttft_ms"]
    assert all(isinstance(summary[name], float | None) for name in named)


def test_each_step_names_its_drafter(tmp_path: Path) -> None:
    ask = ["run", "-p", "Tell me a story about a small fox.", "--seed", "3", "--json", "--max-tokens", "60"]
    done = slipstream(*ask, "--drafter", "recycle", home=tmp_path)
    *steps, summary = map(json.loads, done.stdout.decode().splitlines())
    assert {step["drafter"] for step in steps} == {"recycle", "none"}  # "none" where nothing was drafted
    assert all((step["drafter"] == "none") == (step["drafted"] == 0) for step in steps)
    assert summary["by_drafter"]["recycle"]["drafted"] > 0


def test_its_figures_and_its_seed_are_told_beside_the_answer(tmp_path: Path) -> None:
    ask = ["run", "-p", "Tell me a story about a small fox.", "--max-tokens", "40", "--drafter", "eagle3"]
    done = slipstream(*ask, "--stats", home=tmp_path)
    said = dict(line.split(maxsplit=1) for line in done.stderr.decode().splitlines())
    assert "40 tokens, " in said["reply"] and "--max-tokens" in said["reply"] and " guesses right (" in said["drafting"]
    assert said["promise"] == "same text"
    again = slipstream(*ask, "--seed", said["seed"], home=tmp_path)
    assert again.stdout == done.stdout and not again.stderr


@pytest.mark.slow
def test_typical_acceptance_is_marked_wherever_it_shows(tmp_path: Path) -> None:
    ask = ["run", "-p", "Tell me about the sea", "--seed", "3", "--temp", "1.5", "--max-tokens", "30", "--typical"]
    shown = slipstream(*ask, home=tmp_path)
    assert shown.returncode == 0 and shown.stdout.strip()
    assert shown.stderr.decode() == "slipstream: typical acceptance was on, which changes the text.\n"
    told = slipstream(*ask, "0.2", "--json", home=tmp_path)
    summary = json.loads(told.stdout.decode().splitlines()[-1])
    assert (summary["exact"], summary["promise"]) == (False, "changed")


def test_every_method_says_what_it_is_and_the_help_what_changes_the_text(tmp_path: Path) -> None:
    shown = " ".join(slipstream("run", "--help", home=tmp_path).stdout.decode().split())
    for name, method in METHODS.items():
        assert f"{name} {method.about}" in shown
    assert "CHANGES THE TEXT" in shown and "A+B the first" in shown and "'A|B' the guesses" in shown
    for name, method in METHODS.items():
        assert 10 <= len(method.about) <= 60 and not method.about.endswith("."), name


@pytest.mark.slow
def test_the_second_turn_of_a_kept_chat_reads_only_the_new_words(tmp_path: Path) -> None:
    turns = []
    for prompt in ("Tell me about the sea", "And the moon?"):
        done = slipstream("run", "--chat", "sea", "-p", prompt, "--json", "--max-tokens", "30", home=tmp_path)
        assert done.returncode == 0, done.stderr
        turns.append(json.loads(done.stdout.decode().splitlines()[-1]))
    first, second = turns
    assert first["prefilled_tokens"] == first["prompt_tokens"]
    assert second["prefilled_tokens"] <= second["prompt_tokens"] - first["prompt_tokens"] - first["tokens"] + 3
    assert 0 < second["prefilled_tokens"] < 20
    assert oct((tmp_path / "states" / "sea.state").stat().st_mode & 0o777) == "0o600"


@pytest.mark.slow
def test_a_damaged_state_is_read_again_and_the_chat_goes_on(tmp_path: Path) -> None:
    ask = ["run", "--chat", "sea", "--json", "--max-tokens", "40", "-p"]
    slipstream(*ask, "Tell me about the sea", home=tmp_path)
    state = tmp_path / "states" / "sea.state"
    raw = bytearray(state.read_bytes())
    raw[len(raw) // 2] ^= 1
    state.write_bytes(raw)
    done = slipstream(*ask, "And the moon?", home=tmp_path)
    summary = json.loads(done.stdout.decode().splitlines()[-1])
    assert done.returncode == 0 and summary["prefilled_tokens"] == summary["prompt_tokens"]


def test_paths_prints_where_things_are(tmp_path: Path) -> None:
    done = slipstream("paths", home=tmp_path)
    assert done.returncode == 0 and str(tmp_path / "chats.db") in done.stdout.decode()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("json_lines", [False, True])
def test_a_reader_that_leaves_ends_it_quietly(json_lines: bool, tmp_path: Path) -> None:
    ask = ["run", "-p", "Tell me a long story", "--seed", "1", "--max-tokens", "400", "--stop", "never to be seen"]
    ask += ["--json"] * json_lines
    running = subprocess.Popen(
        [sys.executable, "-c", "from slipstream.app.cli.main import main; main()", *ask], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "SLIPSTREAM_HOME": str(tmp_path)},
    )  # fmt: skip
    assert running.stdout and running.stderr
    with running.stdout as out, running.stderr as errors:
        assert os.read(out.fileno(), 1)
        out.close()
        assert (running.wait(120), errors.read()) == (141, b"")


@pytest.mark.parametrize("command", [["paths"], ["completion", "bash"]])
def test_so_does_one_that_never_read(command: list[str], tmp_path: Path) -> None:
    out, into = os.pipe()
    os.close(out)
    done = subprocess.run(
        [sys.executable, "-c", "from slipstream.app.cli.main import main; main()", *command],
        stdout=into,
        stderr=subprocess.PIPE,
        env={**os.environ, "SLIPSTREAM_HOME": str(tmp_path)},
    )
    os.close(into)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
def test_a_kept_chat_is_drawn_as_it_keeps_unless_options_say_otherwise(tmp_path: Path) -> None:
    from slipstream.app.chats.store import ChatStore
    from slipstream.app.platform.paths import Paths

    def said(*more: str) -> str:
        ask = ["run", "-p", "Tell me about the sea", "--seed", "3", "--max-tokens", "24", *more]
        done = slipstream(*ask, home=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    for name in ("one", "two"):
        store = ChatStore(paths.chats, paths.states, paths.heads, paths.index)
        store.keep_sampling(store.open_or_create(name).id, {"temperature": 1.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
        store.close()
    hot = said("--temp", "1.9", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    cold = said("--temp", "0", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    assert hot != cold
    assert said("--chat", "one") == hot and said("--chat", "two", "--temp", "0") == cold


@pytest.mark.slow
def test_an_answer_follows_a_schema_or_a_grammar(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.gbnf"
    schema.write_text('{"type": "object", "properties": {"animal": {"enum": ["fox", "cat"]}}, "required": ["animal"]}')
    grammar.write_text('root ::= "yes" | "no"')
    ask = ("run", "-p", "Is it a fox?", "--seed", "2")
    texts = {
        slipstream(*ask, "--json-schema", str(schema), "--drafter", name, home=tmp_path).stdout
        for name in ("none", "auto")
    }
    (text,) = texts
    assert json.loads(text)["animal"] in ("fox", "cat")
    assert slipstream(*ask, "--grammar", str(grammar), home=tmp_path).stdout in (b"yes\n", b"no\n")
    cut = slipstream(*ask, "--json-schema", str(schema), "--max-tokens", "2", "--json", home=tmp_path)
    assert "does not fit its grammar: it reached 2 tokens" in cut.stderr.decode()
    assert json.loads(cut.stdout.splitlines()[-1])["complete"] is False
    schema.write_text('{"type": "banana"}')
    assert "the JSON schema cannot be used" in refused(slipstream(*ask, "--json-schema", str(schema), home=tmp_path), 2)
    schema.write_text("{")
    assert "schema.json is no JSON" in refused(slipstream(*ask, "--json-schema", str(schema), home=tmp_path), 2)
    schema.write_text("")
    assert "is empty" in refused(slipstream(*ask, "--json-schema", str(schema), home=tmp_path), 2)


@pytest.mark.parametrize("mark", ["<|over|>", "### user:"])
def test_a_mark_that_ends_a_turn_ends_the_reply_also_where_it_is_text(tmp_path: Path, mark: str) -> None:
    turn = "<|over|>" if mark == "<|over|>" else "\n"
    template = "{% for m in messages %}### {{ m.role }}: {{ m.content }}" + turn + "{% endfor %}"
    model = changed(TARGET, tmp_path / "marks.gguf", {"tokenizer.chat_template": template})
    grammar = tmp_path / "more.gbnf"
    grammar.write_text(f'root ::= "Foxes sleep.\\n{mark} And?"')
    ask = ["run", "-m", str(model), "-p", "Hi", "--grammar", str(grammar), "--json"]
    for drafter in ("none", "lookup"):
        done = json.loads(slipstream(*ask, "--drafter", drafter, home=tmp_path).stdout.decode().splitlines()[-1])
        assert done["done"] == "stop" and done["text"].rstrip("\n") == "Foxes sleep."


def test_a_model_without_a_template_says_that_it_continues_text(tmp_path: Path) -> None:
    model = changed(TARGET, tmp_path / "base.gguf", {"tokenizer.chat_template": ""})
    ask = ["run", "-p", "Tell me about the sea.", "--seed", "3", "--max-tokens", "20"]
    base, own = (slipstream(*ask, "-m", str(each), home=tmp_path) for each in (model, TARGET))
    assert b"it continues text, and does not answer" in base.stderr and not own.stderr
    assert base.returncode == 0 and base.stdout.strip()


@pytest.mark.slow
def test_a_bias_forbids_and_forces_tokens(tmp_path: Path) -> None:
    ask = ("run", "-p", "Tell me about the sea", "--temp", "0", "--max-tokens", "20")
    usual = slipstream(*ask, home=tmp_path).stdout.decode()
    first = usual.split()[0]
    other = slipstream(*ask, "--logit-bias", f"{first}=-inf", home=tmp_path).stdout.decode()
    assert other.split()[0] != first
    texts = {
        slipstream(
            *ask, "--dry", "2", "--top-n-sigma", "1", "--temp", "1", "--seed", "5", "--drafter", name, home=tmp_path
        ).stdout
        for name in ("none", "draft", "lookup")
    }
    assert len(texts) == 1


@pytest.mark.slow
def test_the_models_own_sampling_holds_unless_something_else_was_set(tmp_path: Path) -> None:
    own = changed(TARGET, tmp_path / "own.gguf", {"general.sampling.temp": 0.0})

    def sampled(*more: str) -> tuple[str, float]:
        done = slipstream(
            "run", "-p", "Tell me about the sea", "-m", str(own), "--json", "--max-tokens", "12", *more, home=tmp_path
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout.splitlines()[-1])
        return summary["text"], summary["sampling"].get("temperature", 0.8)

    (cold, temperature), (again, _) = sampled("--seed", "1"), sampled("--seed", "2")
    assert cold == again and temperature == 0.0
    assert sampled("--temp", "1.5", "--seed", "1")[1] == 1.5
    (tmp_path / "settings.toml").write_text("[sampling]\ntemperature = 0.8\n")
    assert sampled("--seed", "1")[1] == 0.8


OPENS_THINK = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", "4"], "--max-tokens ended the reply inside its thoughts (4 tokens)"),
        (["--stop", "e"], "the model ended the reply inside its thoughts"),
        (["--reasoning-budget", "2"], ""),
    ],
)
def test_a_reply_without_an_answer_says_so(tmp_path: Path, options: list[str], words: str) -> None:
    thinks = changed(TARGET, tmp_path / "thinks.gguf", {"tokenizer.chat_template": OPENS_THINK})
    asked = ["run", "-m", str(thinks), "-p", "Tell me about the sea", "--seed", "1", *options]
    done = slipstream(*asked, home=tmp_path)
    assert done.returncode == 0 and (words in done.stderr.decode() if words else not done.stderr), done.stderr
    assert bool(done.stdout.strip()) == (not words)


def test_a_model_of_ollamas_store_is_all_of_its_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = write_lora(tmp_path / "adapter.gguf", read_header(TARGET), gain=0.5)
    bare = changed(TARGET, tmp_path / "bare.gguf", {"tokenizer.chat_template": ""})
    jinja = "{{ messages[0].content + '\\nQ: ' + messages[1].content + '\\nA: ' }}"
    numbers = {"temperature": 0.9, "top_k": 30, "top_p": 0.8, "num_ctx": 300, "num_predict": 20, "seed": 5}
    given = {
        "model": bare.read_bytes(),
        "adapter": adapter.read_bytes(),
        "system": b"Answer as a fox.",
        "template": b"{{ .System }}\nQ: {{ .Prompt }}\nA: {{ .Response }}\n",
        "params": json.dumps({**numbers, "stop": "zzz"}).encode(),
    }
    layers = []
    (tmp_path / "store" / "blobs").mkdir(parents=True)
    for kind, content in given.items():
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / "store" / "blobs" / f"sha256-{digest}").write_bytes(content)
        layers.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
    tag = tmp_path / "store" / "manifests" / "registry.ollama.ai" / "library" / "fox" / "latest"
    tag.parent.mkdir(parents=True)
    tag.write_text(json.dumps({"layers": layers}))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    ask = ["run", "-p", "Tell me about the sea", "--json", "--drafter", "none"]
    changed(TARGET, tmp_path / "model.gguf", {"tokenizer.chat_template": jinja})
    words = f"--lora {adapter} --temp 0.9 --top-k 30 --top-p 0.8 --min-p 0 --seed 5 --max-tokens 20"
    by_hand = [*words.split(), "--system", "Answer as a fox."]

    def summary(*more: str) -> dict[str, object]:
        done = slipstream(*ask, *more, home=tmp_path)
        assert done.returncode == 0 and b"continues text" not in done.stderr, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    named = summary("-m", "fox:latest")
    same = summary("-m", str(tmp_path / "model.gguf"), *by_hand)
    assert [named[key] for key in ("text", "sampling", "seed", "done")] == [
        same[key] for key in ("text", "sampling", "seed", "done")
    ]
    assert named["done"] == "length" and len(str(summary("-m", "fox:latest", "--max-tokens", "2")["text"])) < 20
    long = slipstream(*ask[:1], "-p", "sea " * 400, "-m", "fox:latest", home=tmp_path)
    assert b"holds 300" in long.stderr and long.returncode == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("seeing", "blind"):
        (tmp_path / name).mkdir()
        write_kind(tmp_path / name / "tiny-f32.gguf", "llama")
    write_mmproj(tmp_path / "seeing" / "mmproj-tiny-f16.gguf", "mlp", WIDTH)
    write_picture(tmp_path / "cat.png")
    return tmp_path


def turned_down(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """The one line of a refusal, below the one that these models have no chat template."""
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = b"".join(line for line in lines if b"has no chat template" not in line)
    return refused(done, code)


def run(folder: Path, model: str, *more: str) -> tuple[str, ...]:
    place = str(folder / model / "tiny-f32.gguf")
    return ("run", "-m", place, "-p", "the a of", "--seed", "3", "--max-tokens", "8", "--json", *more)


@pytest.mark.slow
def test_an_image_is_seen_and_makes_the_text(folder: Path) -> None:
    texts = set[str]()
    write_picture(folder / "dog.png", seed=7)
    for more in ((), ("--image", str(folder / "cat.png")), ("--image", str(folder / "dog.png"))):
        for drafter in ("none", "auto"):
            done = slipstream(*run(folder, "seeing", "--drafter", drafter, *more), home=folder / "home")
            assert done.returncode == 0, done.stderr
            summary = json.loads(done.stdout.splitlines()[-1])
            assert summary["prompt_tokens"] > (16 if more else 0)
            texts.add(summary["text"])
    assert len(texts) == 3


@pytest.mark.slow
def test_a_model_without_an_mmproj_file_says_what_to_do(folder: Path) -> None:
    arguments = run(folder, "blind", "--image", str(folder / "cat.png"))
    line = turned_down(slipstream(*arguments, home=folder / "home"), 2)
    assert "cannot see images: no mmproj file" in line and "--mmproj FILE" in line
    given = slipstream(*arguments, "--mmproj", str(folder / "seeing" / "mmproj-tiny-f16.gguf"), home=folder / "home")
    assert given.returncode == 0, given.stderr
    model = str(folder / "blind" / "tiny-f32.gguf")
    line = turned_down(slipstream(*arguments, "--mmproj", model, home=folder / "home"), 1)
    assert "is no mmproj file: it is a llama model" in line
    line = turned_down(slipstream(*run(folder, "blind"), "--mmproj", "nowhere.gguf", home=folder / "home"), 1)
    assert "nowhere.gguf: no such file" in line, "it is named, so it is refused, also without an image"


@pytest.mark.slow
def test_one_that_another_program_keeps_is_found_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "user"))
    other = folder / "user" / ".lmstudio" / "models" / "acme" / "Tiny"
    other.mkdir(parents=True)
    mmproj = write_mmproj(other / "mmproj-tiny-f16.gguf", "mlp", WIDTH)
    arguments = run(folder, "blind", "--image", str(folder / "cat.png"))
    line = turned_down(slipstream(*arguments, home=folder / "home"), 2)
    assert "do not say whether they belong to it" in line and f"start with --mmproj {mmproj}." in line
    write_mmproj(mmproj, "mlp", WIDTH, title="Tiny llama")
    done = slipstream(*arguments, home=folder / "home")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_is_no_image_is_refused_before_the_model_is_loaded(folder: Path) -> None:
    (folder / "cat.gif").write_bytes(b"GIF89a")
    for name, words in (("cat.gif", "is damaged"), ("none.png", "no such file"), ("seeing/tiny-f32.gguf", "is no PNG")):
        line = turned_down(slipstream(*run(folder, "seeing", "--image", str(folder / name)), home=folder / "home"), 2)
        assert words in line


@pytest.mark.slow
def test_a_kept_chat_keeps_its_images_until_it_is_deleted(folder: Path) -> None:
    home = folder / "home"
    long = ("-p", "the a of " * 20)  # a kept state of fewer tokens is not worth reading
    first = slipstream(*run(folder, "seeing", *long, "--chat", "pets", "--image", str(folder / "cat.png")), home=home)
    assert first.returncode == 0, first.stderr
    (kept,) = (home / "images").iterdir()
    assert kept.read_bytes() == (folder / "cat.png").read_bytes() and kept.stat().st_mode & 0o077 == 0
    (folder / "cat.png").unlink()
    following = slipstream(*run(folder, "seeing", "--chat", "pets"), home=home)
    summary = json.loads(following.stdout.splitlines()[-1])
    assert summary["prompt_tokens"] > 2 * 16 and summary["prefilled_tokens"] < summary["prompt_tokens"]
    shown = slipstream("chats", "show", "pets", home=home).stdout.decode()
    assert "[cat.png, 48 × 32 pixels, 1 kB]" in shown and "image:" not in shown
    assert slipstream("chats", "delete", "pets", home=home).returncode == 0
    assert not list((home / "images").iterdir())
