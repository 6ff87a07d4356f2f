"""Files and folders that are not what they were: every command says so in a line, and at once."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.program, pytest.mark.slow]

DEEP = "python3 -c \"print('a='+'['*200000)\" > "
FILES = {
    "catalog.toml": ["models pairs bundled", "models pairs"],
    "drafters.toml": ["drafters list", "drafters off lookup"],
    "models/usual-model": ["models list", "drafters list"],
    "settings.toml": ["settings set sampling.top_k 5", "settings list"],
}
SPOILED = {
    "nested": DEEP + "FILE", "a long number": "python3 -c \"print('a = '+'9'*5000)\" > FILE", "a pipe": "mkfifo FILE",
    "a device without end": "ln -s /dev/zero FILE", "a loop": "ln -s $(basename FILE) FILE",
    "large": "truncate -s 3G FILE", "a folder": "mkdir FILE",
}  # fmt: skip


def shell(line: str, home: Path, limit: float = 60) -> tuple[int, str]:
    """Exit code and standard error of a line of the shell that has 4 GB."""
    line = "ulimit -v 4000000; " + line.replace("slipstream", f"{sys.executable} -m slipstream.app.cli.main")
    environment = {**os.environ, "SLIPSTREAM_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, stdin=subprocess.DEVNULL, timeout=limit, env=environment
    )
    return done.returncode, done.stderr.decode("utf-8", "backslashreplace")


def clear(errors: str) -> bool:
    lines = errors.splitlines()
    return len(lines) <= 2 and all(line.startswith("slipstream: ") and len(line) < 1100 for line in lines)


@pytest.mark.parametrize(
    ("file", "command", "spoil"),  # a second command only meets what may hang or is read without an end
    [
        *((file, first, spoil) for file, (first, *_) in FILES.items() for spoil in SPOILED),
        *((file, each, spoil) for file, (_, *more) in FILES.items() for each in more for spoil in ("nested", "a pipe")),
    ],
)
def test_a_spoiled_file_of_the_owner_is_a_line(file: str, command: str, spoil: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    subprocess.run(["bash", "-c", SPOILED[spoil].replace("FILE", str(tmp_path / file))], check=True)
    code, errors = shell(f"slipstream {command} >/dev/null", tmp_path)
    assert code in (0, 1, 2) and clear(errors) and "errors.log" not in errors, errors
    assert errors or "usual-model" in file or spoil == "a loop"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        ("python3 -c \"print('['*200000)\" > FILE", "deep.jsonl"),
        ("echo '{\"prompt\": '$(head -c 5000 /dev/zero | tr '\\0' 9)'}' > FILE", "number.jsonl"),
        ("head -c 200000000 /dev/zero | gzip -1 > FILE", "bomb.txt.gz"),
        ("ln -s /dev/zero FILE", "endless.txt"),
        ("mkfifo FILE", "pipe.txt"),
        ("head -c 1000 /dev/urandom > FILE", "noise.txt.xz"),
        ("true", "missing.txt"),
    ],
)
def test_a_file_of_prompts_that_is_none_is_a_line(make: str, name: str, tmp_path: Path) -> None:
    subprocess.run(["bash", "-c", make.replace("FILE", str(tmp_path / name))], check=True)
    code, errors = shell(f"slipstream bench --prompts {tmp_path / name}", tmp_path)
    assert code in (1, 2) and clear(errors) and "errors.log" not in errors, errors


@pytest.mark.parametrize(
    "command", ["paths", "models list", "chats list", "run -p Hi", "drafters index .", "models import x"]
)
def test_a_folder_that_is_gone_is_a_line(command: str, tmp_path: Path) -> None:
    line = f"cd $(mktemp -d) && rmdir $PWD && SLIPSTREAM_HOME=home slipstream {command}"
    code, errors = shell(line, tmp_path)
    assert code == 1 and errors.startswith("slipstream: the current folder is gone. Change to another one"), errors


@pytest.mark.parametrize("home", ["/tmp/" + "x" * 300, "/tmp/" + "d/" * 2100, "/dev/null", "$'~\\xff'"])
@pytest.mark.parametrize(
    "command", ["models list", "chats list", "run --chat a -p Hi", "settings set sampling.top_k 5"]
)
def test_a_home_that_cannot_be_one_is_a_line(command: str, home: str, tmp_path: Path) -> None:
    code, errors = shell(f"SLIPSTREAM_HOME={home} slipstream {command} >/dev/null", tmp_path)
    assert code in (0, 1, 2) and clear(errors), errors


@pytest.mark.parametrize("name", ["x" * 5000, "./" + "x" * 5000 + ".gguf", "./l.gguf", "./f.gguf"])
def test_a_name_of_a_model_that_cannot_be_one_is_a_line(name: str, tmp_path: Path) -> None:
    line = f"cd {tmp_path}; ln -s l.gguf l.gguf; mkfifo f.gguf; slipstream run -p Hi -m {name}"
    code, errors = shell(line, tmp_path)
    assert code in (1, 2) and clear(errors), errors


def test_a_chat_whose_time_cannot_be_is_listed(tmp_path: Path) -> None:
    assert shell("slipstream run --chat one -p Hi --max-tokens 2 >/dev/null", tmp_path)[0] == 0
    with closing(sqlite3.connect(tmp_path / "chats.db")) as database, database:
        database.execute("update chats set updated = 1e300")
    assert shell("slipstream chats list", tmp_path) == (0, "")


@pytest.mark.parametrize("value", ["²", "nan", "9" * 5000, "-1"])
@pytest.mark.parametrize("name", ["HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"])
def test_a_number_of_the_environment_that_is_none_is_a_line(name: str, value: str, tmp_path: Path) -> None:
    code, errors = shell(f"HF_HUB_OFFLINE=0 {name}={value} slipstream models search x", tmp_path)
    assert code == 1 and errors.startswith(f"slipstream: {name}: it must be a whole number") and clear(errors)
