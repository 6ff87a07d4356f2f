"""A disk that fails at any call while settings are written: the old file or the new one, and it is said."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.library.load_request import make_usual
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.settings.presets import Presets
from slipstream.app.settings.reading import load
from slipstream.models.errors import SlipstreamError

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
    """Lets the call of that number fail, and notes every call."""

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
    assert failed == list(CALLS)  # each of them failed once, then it succeeded
    new = file.read_bytes()
    assert new != before[file]
    with pytest.MonkeyPatch.context() as patch:  # the file is in place; only its folder cannot be flushed
        failing_at(patch, len(CALLS) + 2, code, [])
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


# --- files that go away -------------------------------------------------------------------------------------------

OWN = '# mine\n[sampling]\ntemperature = 0.25\n[keys]\ngo-on = "f7"\n'


def blank(path: Path) -> None:
    path.write_text("\n \n")


def delete_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nothing" / "settings.toml")


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: os.truncate(path, 0), blank, delete_folder, move_folder, dangle]
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


def test_a_file_without_settings_is_begun_without_a_word(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.toml")
    file.change("sampling.top_k", 7)
    assert file.take_notice() == ""


def test_a_settings_file_without_end_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "settings.toml").open("wb") as sparse:
        sparse.truncate(20 << 30)
    assert "has over 1,048,576 bytes" in SettingsFile(tmp_path / "settings.toml").broken
