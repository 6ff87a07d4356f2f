"""A peer's process, as seen from the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from slipstream.models.errors import SlipstreamError, reason_of

_SERVING: Final = Path(__file__).with_name("serving.py")
_PATIENCE: Final = 1800.0
"""Seconds that one answer may take: a large model, loaded from a slow disk, or a long reply of it."""


class PeerError(SlipstreamError):
    """A peer is missing, refuses, or has died; the benchmark goes on without it."""


class PeerProcess:
    """One engine in a process of its own: two builds of llama.cpp in one process clash.

    Attributes:
        version: The engine's version.
        build: What it was built for, in its own words.
    """

    def __init__(
        self, name: str, engine_file: Path, python: str = sys.executable, install: str = "", patience: float = _PATIENCE
    ) -> None:
        """Starts it.

        Args:
            name: What to call it.
            engine_file: Its file, see ``serving``.
            python: The interpreter that has its package.
            install: How to get the package.
            patience: Seconds that one answer may take.

        Raises:
            PeerError: If the interpreter does not start, or has no such package.
        """
        self._name, self._patience = name, patience
        self._told = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (open as long as the process)
        try:
            self._process = subprocess.Popen(
                [python, str(_SERVING), str(engine_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._told,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._told.close()
            raise PeerError(
                f"{name}: {python} cannot be started: {reason_of(error)}.",
                "Give --peer-python a Python that has the engine's package.",
            ) from error
        try:
            hello = self._answer()
        except PeerError:
            self.close()
            raise
        if "missing" in hello:
            self.close()
            raise PeerError(f"{name} is not installed: {python} says: {hello['missing']}.", install)
        self.version, self.build = str(hello["version"]), str(hello["build"])

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Has it do something.

        Returns:
            Its answer.

        Raises:
            PeerError: If it refuses, and lives on; or dies: then it can be asked nothing more.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has died: there is no answer either
        answer = self._answer()
        if "refused" in answer:
            raise PeerError(f"{self._name} refuses: {answer['refused']}.")
        return answer

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it."""
        self._process.kill()  # it keeps nothing
        self._process.communicate()
        self._told.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        alarm = threading.Timer(self._patience, give_up)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            why = f"gave no answer for {self._patience:,.0f} s" if late.is_set() else f"died: {self._last_words()}"
            raise PeerError(f"{self._name} {why}.")
        return answer

    def _last_words(self) -> str:
        self._process.kill()
        code = self._process.wait()
        self._told.seek(0)
        said = [line.strip() for line in self._told if line.strip()]
        return f"{said[-1].rstrip('.')} (exit code {code})" if said else f"exit code {code}"
