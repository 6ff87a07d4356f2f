"""Named system prompts and sampling presets, in a file that the user may edit."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Sampling
from slipstream.app.settings.toml_file import broken_file, changing, parsed, text_of
from slipstream.app.settings.values import ReplySettings, Value, all_settings
from slipstream.models.errors import SlipstreamError, UsageError

FIELDS: Final = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "top_n_sigma", "dry", "logit_bias", "reasoning", "reasoning_budget",
)  # fmt: skip
"""The fields of ``Sampling`` that a preset may set."""
# a preset of the user replaces the built-in one of the same name
BUILT_IN: Final[Mapping[str, Mapping[str, Value]]] = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "careful": {"temperature": 0.3},
    "creative": {"temperature": 1.2, "min_p": 0.1},
}
OLD_NAMES: Final[Mapping[str, str]] = MappingProxyType({"usual": "default", "sober": "careful", "lively": "creative"})
"""Former names of built-in presets, which are still accepted."""
NONE: Final = "none"  # the word for no system prompt; it cannot be a name


class Presets:
    """The file ``presets.toml``; it is read at every use, since it is small and may have been edited."""

    def __init__(self, path: Path) -> None:
        self._path = path  # need not exist

    def systems(self) -> dict[str, str]:
        table = self._table(self._read(), "system")
        if wrong := [name for name, text in table.items() if not isinstance(text, str)]:
            raise self._wrong(f"system.{wrong[0]} is no text")
        return table

    def presets(self) -> dict[str, dict[str, Value]]:
        table = self._table(self._read(), "preset")
        return {name: dict(values) for name, values in BUILT_IN.items()} | {
            name: self._checked(name, values) for name, values in table.items()
        }

    def keep_system(self, name: str, text: str) -> None:
        self._keep("system", name, text)

    def keep_preset(self, name: str, sampling: Sampling, usual: Sampling | None = None) -> None:
        """Stores the fields of ``sampling`` that differ from ``usual`` as a preset."""
        self._keep("preset", name, values_of(sampling, usual))

    def _keep(self, kind: str, name: str, value: object) -> None:
        if not name.isprintable() or len(name.split()) != 1 or name == NONE or len(name) > 40:
            raise UsageError(f"{one_line(name)[:60]} cannot be a name.", "A name is one word, but not none.")
        with changing(self._path) as document:
            self._table(document, kind)
            document.setdefault(kind, {})[name] = value

    def _read(self) -> dict[str, Any]:
        return parsed(self._path, text_of(self._path))

    def _table(self, document: Mapping[str, Any], kind: str) -> dict[str, Any]:
        table = document.get(kind, {})
        if not isinstance(table, dict):
            raise self._wrong(f"{kind} is no table")
        return table

    def _checked(self, name: str, values: Any) -> dict[str, Value]:
        if not isinstance(values, dict):
            raise self._wrong(f"preset.{name} is no table")
        for field, value in values.items():
            if field not in FIELDS:
                raise self._wrong(f"preset.{name} has {field}; it may have {', '.join(FIELDS)}")
            kind = type(getattr(Sampling(), field))
            if isinstance(value, bool) or not isinstance(value, int | float if kind is float else kind):
                raise self._wrong(f"preset.{name}.{field} is not a {'text' if kind is str else 'number of its kind'}")
        from slipstream.models.sampling.sampler import Sampler  # this loads numpy

        found: dict[str, Value] = {
            field: float(value) if isinstance(getattr(Sampling(), field), float) else value
            for field, value in values.items()
        }
        try:
            Sampler(**replace(Sampling(), **found).drawing())  # type: ignore[arg-type]
            for field in ("logit_bias", "reasoning", "reasoning_budget"):
                all_settings()[f"sampling.{field}"].checked(found.get(field, getattr(Sampling(), field)))
        except UsageError as error:
            raise self._wrong(f"preset.{name}: {error.title.rstrip('.')}") from error
        return found

    def _wrong(self, why: str) -> UsageError:
        return broken_file(self._path, why)


def values_of(sampling: Sampling, usual: Sampling | None = None) -> dict[str, Value]:
    """The fields of ``sampling`` that differ from ``usual``, by default ``Sampling()``."""
    usual = usual or Sampling()
    both = {field: (getattr(sampling, field), getattr(usual, field)) for field in FIELDS}
    return {field: value for field, (value, normal) in both.items() if value != normal}


def suggested(sampling: Sampling, values: Mapping[str, float], chosen: Collection[str]) -> Sampling:
    """``sampling`` with the values that a model's makers recommend, except for the fields in ``chosen``."""
    own = {name: value for name, value in values.items() if name in FIELDS and name not in chosen}
    return replace(sampling, **{name: type(getattr(sampling, name))(value) for name, value in own.items()})


def led_by(reply: ReplySettings) -> ReplySettings:
    """Replaces the name of a stored system prompt in the settings by its text."""
    if reply.system:
        with suppress(SlipstreamError):  # a broken file is reported when presets are used
            return replace(reply, system=Presets(Paths.default().presets).systems().get(reply.system, reply.system))
    return reply
