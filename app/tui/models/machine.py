"""The memory of this machine, and where a model fits."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.library.format import size
from slipstream.app.library.format import speed as speed_words
from slipstream.app.platform.safe_text import one_line, sentence
from slipstream.app.tui.parts.browser import below
from slipstream.models.llama.devices import Device
from slipstream.models.llama.remote import Lender
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.speed import Prediction

VERDICTS = {
    "gpu": ("●", "GPU", "$success"),
    "split": ("◐", "GPU + memory", "$success"),
    "memory": ("○", "runs on the CPU", "$warning"),
    "too big": ("✗", "too big", "$error"),
}
BASES = {
    "replies": "measured in its replies here, without a drafter",
    "measured": "estimated from this machine's memory speed",
    "busy": "roughly estimated from this machine's memory speed, measured while the machine was busy",
    "assumed": "estimated for a usual machine, as this one is not measured",
}
IN_USE = "● "
BEST = "★ "
NO_MARK = "  "
BAR_CELLS = 40
SHADES = ("$primary", "$secondary", "$warning", "$accent")
KINDS = {"gpu": "GPU", "igpu": "GPU", "cpu": "memory"}


def verdict(fit: Fit | None) -> Content:
    if fit is None:
        return Content("")
    mark, word, colour = VERDICTS[fit.verdict]
    return Content(f"{mark} {word}").stylize(colour, 0, 1)


def tok_per_s(speed: Prediction | None) -> Content:
    return Content(speed_words(speed)) if speed else Content("–").stylize("$foreground 50%")


def expected(speed: Prediction | None) -> Content:
    if speed is None:
        return Content("")
    words = Content("Expected here: ").append(tok_per_s(speed).stylize("bold")).append(Content(" tokens a second"))
    return words.append(Content(f", {BASES[speed.basis]}.").stylize("$foreground 60%"))


def memory_bar(fit: Fit) -> Content:
    """A bar of what a model may take, filled with what this one takes, and the words for its colours."""
    need, filled, total = fit.need, Content(""), 0
    words = list[Content]()
    parts = {"weights": need.weights, "KV cache": need.kv, "buffers": need.compute, "extras": need.extras}
    for colour, (word, count) in zip(SHADES, parts.items(), strict=True):
        total += count
        cells = round(BAR_CELLS * fit.taken / fit.room * total / need.total) - filled.cell_length
        filled = filled.append(Content("█" * cells).stylize(colour))
        words += [Content("█ ").stylize(colour).append(word)] if count else []
    bar = filled.append("░" * (BAR_CELLS - filled.cell_length))
    return below(bar, Content("  ").join([*words, Content(f"░ {size(fit.room - fit.taken)} spare")]))


def fit_block(fit: Fit) -> Content:
    context = f" · {fit.n_ctx:,} tokens of context"
    rest = " The rest is for the system." if fit.room and fit.verdict == "memory" else ""
    return below(
        verdict(fit).stylize("bold").append(Content(context if fit.verdict != "too big" else "")),
        *([memory_bar(fit)] if fit.room and fit.verdict != "too big" else []),
        Content(f"{sentence(fit.why)}{rest}").stylize("$foreground 70%"),
    )


def _lent(lender: Lender, in_use: tuple[str, ...]) -> str:
    name = one_line(lender.endpoint.rpartition(":")[0])
    if lender.endpoint in in_use:
        return f"with {name}: in use by this chat"
    if not lender.devices:
        return f"with {name}: in use or gone"
    return f"with {name}: {size(sum(device.free_bytes for device in lender.devices))} more"


class MemoryLine(Widget):
    """Shows the memory of as many devices as fit."""

    devices: reactive[tuple[Device, ...]] = reactive(())
    lenders: reactive[tuple[Lender, ...]] = reactive(())  # the remote machines that lend devices
    in_use: reactive[tuple[str, ...]] = reactive(())  # endpoints of the remote machines that the chat's model uses

    def render(self) -> Content:
        left = Content.assemble(("◢ ", "$primary"), ("slipstream", "bold"), ("  models", "$foreground 70%"))
        shown = [device for device in self.devices if device.kind != "accel" and not device.machine]
        free = [f"{size(device.free_bytes)} of {size(device.total_bytes)} free" for device in shown]
        full = [f"{one_line(device.description)}: {words}" for device, words in zip(shown, free, strict=True)]
        short = [f"{KINDS[device.kind]}: {words}" for device, words in zip(shown, free, strict=True)]
        lent = [_lent(lender, self.in_use) for lender in self.lenders]
        width = self.size.width
        both = (full + lent, short + lent, short[:1] + lent, lent) if lent else ()
        for words in (*both, full, short, full[:1], short[:1], []):
            right = " · ".join(words)
            if left.cell_length + len(right) + 2 <= width:
                break
        gap = Content(" " * max(width - left.cell_length - len(right), 1))
        return left.append(gap).append(Content(right).stylize("$foreground 70%"))
