"""Declares every setting: its name, type, default, range and description; a group is a table, a field a key in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, cast

from slipstream.app.protocol.requests import AUTO, EXACT, STATES_LIMIT, Devices, Exact, Load, Lora, Sampling
from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.chat_template import LEVELS
from slipstream.models.errors import UsageError
from slipstream.models.outside import decimal_number, quoted, whole_number
from slipstream.models.sampling.bias import entries_of

Value = bool | int | float | str  # what a setting may hold
When = Literal["at once", "in the next chat", "when a model is loaded next", "at the next start"]
"""The time from which a change takes effect."""
V = TypeVar("V", bool, int, float, str)
LAST: Final = "last"  # value of ``model.name``: the model that was chosen last
KEYS: Final = "keys"  # the table of the file that maps actions to keys
CONTEXTS: Final = "contexts"  # the table of the file that maps models to their own contexts
OVERFLOWS: Final = ("drop", "compact", "stop")
_USUAL: Final = Sampling()
_OWN: Final = "unset, the model's own"
_CHAT: Final[When] = "in the next chat"
_LOAD: Final[When] = "when a model is loaded next"
_START: Final[When] = "at the next start"
ABOUT: Final = "slipstream.setting"  # key of a field's metadata that holds its ``About``
_MOST_TEXT: Final = 20_000
_WORDS: Final = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


@dataclass(frozen=True, slots=True)
class About:
    """The description of a setting, given where it is declared."""

    text: str  # what it does, in a line
    low: float = 0.0
    high: float = 0.0
    above: bool = False  # whether a number must be above ``low``
    choices: tuple[str, ...] = ()  # the allowed words; empty for any
    when: When = "at once"
    named: tuple[Value, str] | None = None  # a value with a special meaning, and a word that may be typed instead
    check: Callable[[str], object] | None = None  # raises ``UsageError`` for an invalid text
    here: bool = False  # whether it names something of this machine, which is looked for when it is set

    @property
    def effect(self) -> str:
        """``when`` as a sentence without its full stop."""
        return {"at once": "Takes effect now", "at the next start": "Takes effect after restart"}.get(
            self.when, f"Takes effect {self.when}"
        )

    @property
    def sentence(self) -> str:
        return f"{self.text[:1].upper()}{self.text[1:]}."


def setting(default: V, text: str, **about: Any) -> V:
    """A dataclass field that is a setting; ``about`` are fields of ``About``."""
    made: V = field(default=default, metadata={ABOUT: About(text, **about)})
    return made


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting by its name."""

    group: str  # its table in the file
    key: str  # its key in that table
    default: Value  # its type is the setting's type
    about: About

    @property
    def name(self) -> str:
        return f"{self.group}.{self.key}"

    @property
    def wanted(self) -> str:
        about = self.about
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return f"one of {', '.join(about.choices)}" if about.choices else "a text"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if about.above:
            return f"{kind} above {about.low:g} and at most {about.high:g}"
        return f"{kind} from {_plain(about.low)} to {_plain(about.high)}"

    def checked(self, value: object) -> Value:
        about, good = self.about, False
        if isinstance(self.default, bool):
            good = isinstance(value, bool)
        elif isinstance(self.default, str):
            good = isinstance(value, str) and len(value) <= _MOST_TEXT and (not about.choices or value in about.choices)
            good = good and bool(str(value).strip() or not self.default)  # empty only where that is the default
            if good and about.check:
                about.check(str(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(value, int) or not isinstance(self.default, int)
            low = value > about.low if about.above else value >= about.low
            good = whole and low and value <= about.high  # False for NaN
        if not good:
            raise UsageError(f"{self.name} is {_shown(value)}; it must be {self.wanted}.")
        return float(cast(float, value)) if isinstance(self.default, float) else cast(Value, value)

    def read(self, text: str) -> Value:
        """Reads a value as a person types it, without quotes; accepts a decimal comma, and words such as yes."""
        typed = text.strip()
        value: object = typed
        if isinstance(self.default, bool):
            value = _WORDS.get(typed.casefold(), typed)
        elif self.about.named and typed.casefold() == self.about.named[1]:
            value = self.about.named[0]
        elif not isinstance(self.default, str):
            value = _number(typed)
        return self.checked(value)


def _number(text: str) -> object:
    text = text.replace(",", ".")
    for read in (whole_number, decimal_number):
        with suppress(ValueError):
            return read(text)
    return text


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 1e15 else "too large"
    return quoted(value) if isinstance(value, str) else "a table or a list"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Model."""

    name: str = setting(
        LAST, "model to begin with: last (chosen last), bundled, a name of the list, or a path", when=_START, here=True
    )
    folders: str = setting(
        "",
        "folders whose GGUF files are listed, with commas; nothing there changes",
        check=lambda text: folders_of(text),
    )
    drafter: str = setting(
        AUTO, "drafter at the start; auto chooses step by step, none never guesses", when=_START, here=True
    )
    context: int = setting(
        0,
        f"context in tokens; 0 takes the model's own, at most {DEFAULT_CONTEXT:,}",
        high=1 << 20,
        when=_LOAD,
        named=(0, "auto"),
    )
    kv_type: str = setting(
        "auto",
        "numbers of the KV cache; q8_0 takes half the memory of f16, q4_0 a quarter and is less exact",
        choices=("auto", "f16", "q8_0", "q4_0"),
        when=_LOAD,
    )
    gpu_layers: int = setting(
        -1, "layers on the GPU; -1 takes all that fit, 0 none", low=-1, high=1000, when=_LOAD, named=(-1, "all")
    )
    lora: str = setting(
        "",
        "LoRA adapters by the beginning of a model file's name, as in qwen3=~/style.gguf:0.5, with commas",
        when=_LOAD,
        check=lambda text: adapters_of(text),
    )
    cpu_experts: int = setting(
        -1,
        "of a model with experts: its first layers whose experts stay in memory beside a GPU; -1 takes as few as fit",
        low=-1,
        high=1000,
        when=_LOAD,
        named=(-1, "auto"),
    )
    threads: int = setting(0, "threads of every pass; 0 takes as many as help", high=512, when=_LOAD, named=(0, "auto"))


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Devices."""

    rpc: str = setting(
        "", "machines that lend devices, as host:port, with commas", when=_LOAD, check=lambda text: _machines(text)
    )
    split_mode: str = setting(
        "layer",
        "how GPUs share a model: by layers, by rows of its matrices, or none: the main one alone",
        choices=("layer", "row", "none"),
        when=_LOAD,
    )
    tensor_split: str = setting(
        "",
        "share of each GPU, as in 3,1, in the order of slipstream doctor; empty fills them evenly",
        when=_LOAD,
        check=lambda text: Devices(tensor_split=text).shares(),
    )
    main_gpu: int = setting(0, "number of the main GPU, from 0", high=255, when=_LOAD)
    draft: str = setting("", "device of the draft model, by its name in slipstream doctor", when=_LOAD, here=True)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling."""

    temperature: float = setting(
        _USUAL.temperature, f"how freely tokens are drawn; 0 takes the likeliest; {_OWN}", high=10.0
    )
    top_k: int = setting(_USUAL.top_k, f"keep so many of the best tokens; 0 is off; {_OWN}", high=1_000_000)
    top_p: float = setting(
        _USUAL.top_p, f"keep the best tokens with this much probability; 1 is off; {_OWN}", above=True, high=1.0
    )
    min_p: float = setting(_USUAL.min_p, f"keep tokens with this share of the best; 0 is off; {_OWN}", high=0.99)
    repetition_penalty: float = setting(
        _USUAL.repetition_penalty, "above 1 makes what was said less likely; 1 is off", low=0.01, high=100.0
    )
    presence_penalty: float = setting(
        _USUAL.presence_penalty, "penalty for words already used; 0 is off", low=-100.0, high=100.0
    )
    top_n_sigma: float = setting(
        _USUAL.top_n_sigma, "keep tokens within so many standard deviations of the best; 0 is off", high=100.0
    )
    dry: float = setting(_USUAL.dry, "how strongly repetitions of what was said are avoided; 0 is off", high=100.0)
    logit_bias: str = setting(
        _USUAL.logit_bias, "tokens to favour or avoid, such as the=-2, fox=1.5, 123=-inf", check=entries_of
    )
    reasoning: str = setting(
        _USUAL.reasoning,
        "how much the model thinks before it answers; auto leaves it to the model",
        choices=(_USUAL.reasoning, *LEVELS),
    )
    reasoning_budget: int = setting(
        _USUAL.reasoning_budget, "most tokens of thoughts; -1 sets no limit", low=-1, high=1_000_000, named=(-1, "none")
    )
    typical: float = setting(
        0.0, "threshold of Medusa's typical acceptance: faster, but changes the text; 0 is off", high=1.0, when=_START
    )

    def sampling(self, seed: int) -> Sampling:
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return Sampling(**(values | {"seed": seed, "typical": self.typical or None}))


@dataclass(frozen=True, slots=True)
class ReplySettings:
    """Replies."""

    system: str = setting("", "system prompt of new chats: a text, or the name of a kept one", when=_CHAT)
    max_tokens: int = setting(0, "most tokens of a reply; 0 lets it end by itself", high=1_000_000)
    overflow: str = setting(
        "drop",
        "what is done when a chat outgrows the context: drop the oldest messages, compact them to a summary, or stop",
        choices=OVERFLOWS,
    )
    exact: str = setting(
        "auto",
        "whether the same seed gives the same text, bit for bit: always, never, or auto: where that costs under 3 %",
        choices=EXACT,
        when=_LOAD,
    )


@dataclass(frozen=True, slots=True)
class AheadSettings:
    """Reading ahead."""

    read: bool = setting(True, "read what is typed before it is sent, so that the reply begins sooner")
    on_battery: bool = setting(False, "do so on the battery, too")


@dataclass(frozen=True, slots=True)
class ScreenSettings:
    """Screen."""

    theme: str = setting("slipstream-dark", "colours of the screen", here=True)
    colours: bool = setting(False, "show the source of each word; F3 switches it")
    guesses: bool = setting(False, "show each step's guesses beside the chat; F4 switches it")
    formulas: bool = setting(True, "show formulas such as $x^2$ in Unicode; copies keep what was written")
    sidebar: str = setting(
        "fit", "list of chats", choices=("fit", "open", "closed"), named=("fit", "where the screen is wide")
    )
    animation: str = setting("full", "how much moves; none suits slow lines", choices=("full", "basic", "none"))
    mouse: bool = setting(True, "take the mouse; off leaves it to the terminal, to select text with", when=_START)


@dataclass(frozen=True, slots=True)
class KeepingSettings:
    """Keeping."""

    chats: bool = setting(True, "keep chats; off forgets them when slipstream ends", when=_START)
    days: int = setting(
        0, "days until a chat, unless pinned, is deleted; 0 keeps all", high=36_500, when=_START, named=(0, "forever")
    )
    states_gb: float = setting(
        STATES_LIMIT / (1 << 30),
        "disk for states that reopen long chats without reading them again; 0 keeps none",
        high=1000.0,
        when=_LOAD,
    )


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Hub."""

    offline: bool = setting(False, "never ask the model hub, as HF_HUB_OFFLINE=1 does")
    offer: bool = setting(True, "offer a model that fits this machine where only the bundled one is here")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings."""

    model: ModelSettings = field(default_factory=ModelSettings)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)  # for new chats and ``run``
    reply: ReplySettings = field(default_factory=ReplySettings)
    ahead: AheadSettings = field(default_factory=AheadSettings)
    screen: ScreenSettings = field(default_factory=ScreenSettings)
    keeping: KeepingSettings = field(default_factory=KeepingSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    # keys by action, empty for none, see ``slipstream.app.tui.keys``
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # contexts in tokens by model file name; they override ``model.context``
    contexts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def loading(self, load: Load) -> Load:
        model = self.model
        given = [each for each in load.lora if not each.settled]
        file = os.path.basename(load.model).casefold()
        settled = [adapter for name, adapter in adapters_of(model.lora) if file.startswith(name.casefold())]
        return replace(
            load,
            n_ctx=self.contexts.get(Path(load.model).name, model.context) or load.extras.n_ctx,
            kv_type=model.kv_type,
            gpu_layers=model.gpu_layers,
            cpu_experts=model.cpu_experts,
            devices=Devices(**asdict(self.devices)),
            threads=model.threads,
            states_limit=int(self.keeping.states_gb * (1 << 30)),
            lora=given or settled,
            exact=cast(Exact, self.reply.exact),
        )

    def value(self, name: str) -> Value:
        group, key = name.split(".")
        value: Value = getattr(getattr(self, group), key)
        return value

    def having(self, values: Mapping[str, Value | None]) -> Settings:
        """These settings with some values replaced, by name; None stands for the default."""
        changed = self
        for name, value in values.items():
            group, key = name.split(".", 1)
            own = getattr(changed, group)
            if group in (KEYS, CONTEXTS):
                kept = {each: its for each, its in own.items() if each != key}
                own = MappingProxyType(kept if value is None else {**kept, key: value})
            else:
                own = replace(own, **{key: all_settings()[name].default if value is None else value})
            changed = replace(changed, **{group: own})
        return changed


def adapters_of(text: str) -> list[tuple[str, Lora]]:
    """Reads ``qwen3=style.gguf:0.5, llama=other.gguf``: beginnings of model files' names, and their adapters."""
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, file = entry.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"model.lora cannot be read from {quoted(entry)}.",
                "Write models and adapters, such as qwen3=~/style.gguf:0.5, with commas between them.",
            )
        found.append((name.strip(), replace(Lora.read(file.strip()), settled=True)))
    return found


def folders_of(text: str) -> list[Path]:
    folders = [Path(part.strip()).expanduser() for part in text.split(",") if part.strip()]
    for folder in folders:
        if not folder.is_absolute():
            raise UsageError(f"model.folders has {quoted(str(folder))}, no full path.", "Begin it with / or ~.")
    return folders


def _machines(text: str) -> list[str]:
    from slipstream.models.llama.remote import endpoints  # imports llama.cpp's bindings

    return endpoints(text) if text else []


@cache
def all_settings() -> Mapping[str, Setting]:
    """Every setting by name, in the order of the file."""
    usual = Settings()
    found = [
        Setting(group.name, each.name, getattr(getattr(usual, group.name), each.name), each.metadata[ABOUT])
        for group in fields(Settings)
        if group.name not in (KEYS, CONTEXTS)
        for each in fields(getattr(usual, group.name))
    ]
    return MappingProxyType({each.name: each for each in found})


def titles() -> dict[str, str]:
    usual = Settings()
    groups = (each.name for each in fields(Settings) if each.name not in (KEYS, CONTEXTS))
    return {name: (getattr(usual, name).__doc__ or name).rstrip(".") for name in groups}
