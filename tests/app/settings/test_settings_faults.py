"""Settings while disks fail, files go away, and others write: the old file or the new one, and it is said."""

import errno
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.library.load_request import make_usual
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.file import SettingsFile, load, template
from slipstream.app.settings.presets import Presets
from slipstream.app.settings.toml_file import MOST_BYTES
from slipstream.models.errors import SlipstreamError
from slipstream.models.files import locked

CALLS = ("open", "write", "fsync", "replace")
CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)
MOST = 50


def change_settings(paths: Paths) -> Path:
    SettingsFile(paths.settings).change("reply.system", "Be brief. " * 400)
    return paths.settings


def change_presets(paths: Paths) -> Path:
    Presets(paths.presets).keep_preset("mine", Sampling(temperature=0.25))
    return paths.presets


def change_usual(paths: Paths) -> Path:
    make_usual(paths, "another")
    return paths.models / "usual-model"


def failing_at(patch: pytest.MonkeyPatch, number: int, code: int, calls: list[str]) -> None:
    def bent(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        return call

    for name in CALLS:
        patch.setattr(os, name, bent(name, getattr(os, name)))


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("change", [change_settings, change_presets, change_usual])
def test_old_or_new_but_never_between(change: Callable[[Paths], Path], code: int, tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    paths.settings.write_text("# mine\n[sampling]\ntop_k = 3\n", "utf-8")
    paths.presets.write_text("# mine\n[preset.cold]\ntop_k = 3\n", "utf-8")
    make_usual(paths, "one")
    before = {path: path.read_bytes() for path in (paths.settings, paths.presets, paths.models / "usual-model")}
    failed: list[str] = []
    for number in range(1, MOST):
        calls: list[str] = []
        try:
            with pytest.MonkeyPatch.context() as patch:
                failing_at(patch, number, code, calls)
                file = change(paths)
        except SlipstreamError as error:
            failed.append(calls[number - 1])
            words = f"{error.title} {error.hint}"
            assert "cannot write to" in words and os.strerror(code).lower() in words and "SLIPSTREAM_HOME" in words
            assert {path: path.read_bytes() for path in before} == before
        else:
            break
        assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]  # nothing half-done is left
    assert list(dict.fromkeys(failed)) == list(CALLS)  # each of them failed, then it succeeded
    new = file.read_bytes()
    assert new != before[file]
    with pytest.MonkeyPatch.context() as patch:  # the file is in place; only its folder cannot be flushed
        failing_at(patch, len(failed) + 2, code, [])
        file.write_bytes(before[file])
        assert change(paths).read_bytes() == new


def test_what_could_not_be_written_holds_until_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    kept = SettingsFile(file)
    with monkeypatch.context() as patch:
        failing_at(patch, 2, errno.ENOSPC, [])
        with pytest.raises(SlipstreamError, match=r"no space left on device.*Make some room.*the change holds"):
            kept.restore({"model.context": 512, "keys.go-on": "f7"})
    assert kept.settings.model.context == 512 and kept.where("model.context") == "until slipstream ends"
    assert dict(kept.settings.keys) == {"go-on": "f7"}
    assert not file.exists()
    kept.change("model.context", 1024)
    assert kept.where("model.context") == "settled" and load(file).settings.model.context == 1024


def test_a_write_that_is_cut_short_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, raw: real(handle, raw[:7]))
    SettingsFile(tmp_path / "settings.toml").change("reply.system", "море " * 50)
    assert load(tmp_path / "settings.toml").settings.reply.system == "море " * 50


def test_files_are_their_owner_s_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        SettingsFile(tmp_path / "new" / "settings.toml").change("ahead.read", False)
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "settings.toml").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


OWN = '# mine\n[sampling]\ntemperature = 0.25\n[keys]\ngo-on = "f7"\n'


def delete_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nothing" / "settings.toml")


@pytest.mark.parametrize(
    "harm",
    [
        *(Path.unlink, delete_folder, dangle, lambda path: os.truncate(path, 0), lambda path: path.write_text("\n \n")),
        lambda path: path.parent.rename(path.parent.with_name("moved")),
    ],
)
def test_settings_whose_file_goes_away_are_written_again(harm: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "home" / "settings.toml"
    path.parent.mkdir()
    path.write_text(OWN)
    file = SettingsFile(path)
    harm(path)
    file.change("sampling.top_k", 7)
    assert file.settings.sampling.temperature == 0.25 and dict(file.settings.keys) == {"go-on": "f7"}
    assert file.take_notice() == "settings.toml was deleted or emptied: all settings were written to a new one."
    assert file.take_notice() == ""
    kept = load(path)
    assert kept.settings.sampling.temperature == 0.25 and kept.settings.sampling.top_k == 7
    assert kept.text.startswith("# mine")
    file.change("sampling.top_k", 8)
    assert file.take_notice() == ""


def test_what_another_program_wrote_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(OWN)
    file = SettingsFile(path)
    path.write_text("# theirs\n[sampling]\nmin_p = 0.5\n")
    file.change("sampling.top_k", 7)
    assert path.read_text() == "# theirs\n[sampling]\nmin_p = 0.5\ntop_k = 7\n"
    assert file.settings.sampling.min_p == 0.5 and file.settings.sampling.temperature != 0.25
    path.write_text("[sampling\n")
    with pytest.raises(SlipstreamError, match="is broken at line 1"):
        file.change("sampling.top_k", 9)
    assert path.read_text() == "[sampling\n" and file.settings.sampling.top_k == 9
    path.unlink()
    path.mkdir()
    with pytest.raises(SlipstreamError, match="it is no file"):
        file.change("sampling.top_k", 10)
    path.rmdir()
    file.change("sampling.top_k", 11)
    assert load(path).settings.sampling.min_p == 0.5, "what was read last is written again"


def test_a_file_is_begun_without_a_word_and_told_if_it_has_no_end_or_many_faults(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.toml")
    file.change("sampling.top_k", 7)
    assert file.take_notice() == ""
    with (tmp_path / "settings.toml").open("wb") as sparse:
        sparse.truncate(20 << 30)
    assert "has over 262,144 bytes" in SettingsFile(tmp_path / "settings.toml").broken
    (tmp_path / "settings.toml").write_text("[sampling]\n" + "".join(f"k{n} = 1\n" for n in range(3000)))
    *first, last = load(tmp_path / "settings.toml").problems
    assert len(first) == 20 and "line 2: there is no setting sampling.k0" in first[0]
    assert "2,980 more entries are wrong" in last


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    return Paths.default()


def at_once(commands: Iterable[Sequence[str]]) -> list[tuple[int, str]]:
    program = [sys.executable, "-m", "slipstream.app.cli.main"]
    running = [subprocess.Popen([*program, *each], stdout=-1, stderr=-1, text=True) for each in commands]
    return [(each.wait(120), each.communicate()[1]) for each in running]


@pytest.mark.slow
def test_eight_changes_at_once_are_all_kept(home: Paths) -> None:
    wanted = {
        "sampling.top_k": 7, "sampling.top_p": 0.5, "sampling.dry": 0.7, "model.threads": 3, "model.context": 512,
        "hub.offer": False, "keeping.days": 9, "reply.max_tokens": 5,
    }  # fmt: skip
    done = at_once(["settings", "set", name, str(value).lower()] for name, value in wanted.items())
    assert done == [(0, "")] * 8
    assert dict(load(home.settings).values) == wanted
    assert at_once(["settings", "reset", name] for name in wanted) == [(0, "")] * 8
    assert not load(home.settings).values and home.settings.read_text("utf-8") == template()


@pytest.mark.slow
def test_six_drafters_switched_off_at_once_are_all_off(home: Paths) -> None:
    names = {"lookup", "recycle", "lookahead", "draft", "medusa", "space"}
    assert at_once(["drafters", "off", name, "-m", "bundled"] for name in names) == [(0, "")] * 6
    (kept,) = tomllib.loads(home.drafters.read_text("utf-8"))["off"].values()
    assert set(kept) == names


def test_presets_of_many_threads_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "presets.toml"
    names = [f"p{number}" for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda name: Presets(file).keep_system(name, f"Be {name}."), names))
    assert Presets(file).systems() == {name: f"Be {name}." for name in names}


@pytest.mark.slow
def test_a_change_that_others_keep_waiting_says_that_it_was_not_made(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.toml")
    with (
        locked(tmp_path / "settings.toml.lock"),
        pytest.raises(SlipstreamError, match=r"another slipstream is changing .*nothing was changed"),
    ):
        file.change("sampling.top_k", 7)
    assert not (tmp_path / "settings.toml").exists() and file.settings.sampling.top_k == 7
    file.change("sampling.top_p", 0.5)
    assert load(tmp_path / "settings.toml").settings.sampling.top_p == 0.5


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        ("[sampling]\n", "key{} = {}\n"), ("", "group{} = {}\n"), ("", "[table{}]\nx = {}\n"),
        ("[contexts]\n", "'m{}.gguf' = {}\n"), ("[keys]\n", "action{} = {}\n"), ("", "sampling.unknown{} = {}\n"),
    ],
)  # fmt: skip
def test_reading_takes_time_in_proportion_to_the_size(begin: str, line: str, tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        file = tmp_path / "settings.toml"
        file.write_text(begin + "".join(line.format(number, number) for number in range(count)))
        started = time.process_time()
        read = load(file)
        assert not read.broken and len(read.problems) <= 21
        return time.process_time() - started

    seconds(10)
    assert seconds(9000) < 20 * seconds(900) + 0.5


@pytest.mark.parametrize("filling", [" ", "\t", "[", "a", "a ", '"', "=", "[ "])
def test_a_long_line_within_a_text_takes_no_time(filling: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    inside = (filling * 200_000)[:200_000]
    file.write_text(f"[model]\nname = '''\n{inside}|\n[{inside}|\n'''\n"[: MOST_BYTES - 10] + "\n")
    started = time.process_time()
    load(file)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("text", ["a" + ".a" * 60_000 + " = 1", "[a" + ".a" * 60_000 + "]", "a." * 100_000])
def test_a_name_of_very_many_parts_is_refused_at_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(text)
    started = time.process_time()
    assert "nested too deeply" in load(tmp_path / "settings.toml").broken
    assert time.process_time() - started < 2


@pytest.mark.parametrize("text", ["a = " + "[" * 300 + "]" * 300, "a = " + "{a=" * 300 + "1" + "}" * 300])
def test_a_file_nested_too_deeply_to_be_changed_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SlipstreamError, match="is broken"):
        SettingsFile(file).change("sampling.top_k", 7)
    assert file.read_text() == text
