"""The colour themes, and how the settings are applied to the chat."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from slipstream.app.library.load_request import check_files, remember_file
from slipstream.app.platform.paths import Paths
from slipstream.app.settings.file import SettingsFile, known, nearest
from slipstream.app.settings.values import KEYS, LAST, Settings, Value
from slipstream.app.tui.chat.screen import ChatScreen
from slipstream.app.tui.keys import KeyMap
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.outside import quoted

THEME: Final = "screen.theme"
NAMES: Final = (
    "primary", "secondary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel",
    "faint", "keys", "cursor", "cursor-text",
)  # fmt: skip


def _theme(name: str, colours: str, dark: bool = True, own: Mapping[str, str] = {}) -> Theme:
    """A theme of a colour for each of ``NAMES``: Textual's, then borders, the footer's words and the cursor."""
    of: dict[str, Any] = dict(zip(NAMES, colours.split(), strict=True))
    variables = {
        "footer-background": of["background"],
        "footer-key-foreground": of["primary"],
        "footer-description-foreground": of["keys"],
        "block-cursor-background": of["cursor"],
        "block-cursor-foreground": of["cursor-text"],
        "block-cursor-text-style": "bold",
        "scrollbar": of["faint"],
        "scrollbar-background": of["background"],
        "scrollbar-corner-color": of["background"],
        "border": of["primary"],
        "border-blurred": of["faint"],
    }
    return Theme(name, dark=dark, variables={**variables, **own}, **{each: of[each] for each in NAMES[:10]})


DARK: Final = _theme(
    "slipstream-dark",
    "#56d4c4 #82aaff #ffb86b #ffcb6b #ff7a85 #9ece6a #d3dae3 #0f141a #161d25 #1f2832 #2a3540 #8793a1 #24414a #e8eef4",
)
LIGHT: Final = _theme(
    "slipstream-light",
    "#00766c #2f5fd0 #b35900 #8f6a00 #c22f3d #3d7a1c #242a31 #fbfaf7 #f1efe9 #e6e3da #cdc9be #5d6670 #cfe6e2 #14181d",
    dark=False,
)
CONTRAST: Final = _theme(
    "slipstream-contrast",
    "#00ffff #9fc5ff #ffb000 #ffff00 #ff9a9a #5dff5d #ffffff #000000 #000000 #1c1c1c #b0b0b0 #ffffff #ffffff #000000",
    own={"text-muted": "#e0e0e0", "scrollbar": "#ffffff", "border": "#ffffff"},
)


def check_here(name: str, value: str) -> None:
    """Raises an error if what a setting names is not on this machine; slow, since it may list models and devices."""
    from slipstream.app.engine.drafter_list import check_drafter
    from slipstream.app.library.resolve_model import choose
    from slipstream.models.llama.devices import devices

    paths, names = Paths.default(), list[str]()
    if name == "model.drafter":
        check_drafter(value)
    elif name == "model.name" and value != LAST:
        check_files(choose(paths, value), paths.bundled)
    elif name == "devices.draft" and value and "/" not in value:  # machines that lend theirs may be away
        names = [device.name for device in devices()]
    elif name == THEME:
        names = [*(theme.name for theme in (DARK, LIGHT, CONTRAST)), *BUILTIN_THEMES]
    if names and value not in names:
        raise UsageError(f"{name} is {quoted(value)}; there are {', '.join(names)}.{nearest(value, names)}")


class Settled:
    """Applies the settings to the parts of the chat, at the start and after changes."""

    def __init__(self, app: App[int], file: SettingsFile, chat: ChatScreen, models: ModelsAccess) -> None:
        self.file = file
        self._app, self._chat, self._models = app, chat, models
        chat.keep, chat.model.keep_context = self.restore, self._keep_context
        chat.model.remember = lambda model: remember_file(Paths.default(), file, model)
        for theme in (DARK, LIGHT, CONTRAST):
            app.register_theme(theme)
        self.problems = list(file.problems)  # error messages about the settings
        self._themed_before = app.theme != "textual-dark"  # whether TEXTUAL_THEME is set
        self.keys = KeyMap.made(file.settings.keys, ChatScreen.BINDINGS)  # the keys of the chat
        self.problems += self.keys.problems
        self._now: Settings | None = None
        self._looked_at = ""  # the theme that is shown until one is kept
        self._show_theme()

    def begin(self) -> None:
        self.apply()
        self._app.theme_changed_signal.subscribe(self._app, lambda theme: self._theme_chosen(theme.name))

    def apply(self) -> None:
        before, now = self._now, self.file.settings
        self._now = now
        if before is None or before.keys != now.keys:
            self.keys = KeyMap.made(now.keys, ChatScreen.BINDINGS)
            self._app.set_keymap(self.keys.textual)
        if before is None or before.screen != now.screen:
            self._show_theme()
            self._app.animation_level = cast(Literal["full", "basic", "none"], now.screen.animation)
        self._chat.apply_settings(now, before)
        self._models.apply(now.hub, now.devices.rpc)

    @property
    def themes(self) -> list[str]:
        own = [DARK.name, LIGHT.name, CONTRAST.name]
        return [*own, *sorted(set(self._app.available_themes) - set(own))]

    def checked(self, name: str, value: Value) -> Value:
        """Parses and checks a value of a setting or a key; raises ``UsageError`` if it is invalid."""
        group, key = name.split(".", 1)
        if group == KEYS:
            made = KeyMap.made({**self.file.settings.keys, key: str(value)}, ChatScreen.BINDINGS)
            if new := next((problem for problem in made.problems if problem not in self.keys.problems), ""):
                raise UsageError(new.removeprefix(f"{KEYS}: "))
            return made.own.get(key, made.usual[key])
        setting = known(name)
        return setting.read(value) if isinstance(value, str) else setting.checked(value)

    def look_at(self, theme: str = "") -> None:
        """Shows a theme without keeping it; without a name, the kept one."""
        if theme in self._app.available_themes and (not self._themed_before or self.file.where(THEME)):
            self._looked_at = self._app.theme = theme
        else:
            self._show_theme()

    def restore(self, values: Mapping[str, Value | None]) -> None:
        """Stores values by name, None for the default, and applies them, even if they cannot be stored."""
        try:
            self.file.restore(values)
        finally:
            self.apply()
            self._tell_notice()

    def _keep_context(self, model: str, tokens: int | None) -> None:
        try:
            self.file.keep_context(model, tokens)
        finally:
            self.apply()
            self._tell_notice()

    def _show_theme(self) -> None:
        wanted = self.file.settings.screen.theme
        if self._themed_before and not self.file.where(THEME):
            return
        if wanted not in self._app.available_themes:
            like = nearest(wanted, self._app.available_themes)
            self.problems.append(f"{THEME}: there is no theme {wanted!r}; {DARK.name} is taken.{like}")
            wanted = DARK.name
        self._app.theme = wanted

    def _theme_chosen(self, name: str) -> None:
        if name == self._app.theme and name not in (self._looked_at, self.file.settings.screen.theme):
            self._themed_before = False
            try:
                self.file.change(THEME, name)
            except SlipstreamError as error:
                self._app.notify(f"{error.title} {error.hint}", severity="warning", markup=False)
            self._tell_notice()

    def _tell_notice(self) -> None:
        if words := self.file.take_notice():
            self._app.notify(words, severity="warning", timeout=8, markup=False)
