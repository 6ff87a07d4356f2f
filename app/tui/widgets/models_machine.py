"""The line at the top of the model manager: what the models have to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets.models_words import size

if TYPE_CHECKING:
    from slipstream.models.runtime.devices import Device

KINDS = {"gpu": "GPU", "igpu": "GPU", "cpu": "memory"}


class Machine(Widget):
    """The memory of the GPUs and of the processor, as many of them as there is room for."""

    devices: reactive[tuple[Device, ...]] = reactive(())
    """What the machine has."""

    def render(self) -> Content:
        """Draws the line."""
        left = Content.assemble(("◢ ", "$primary"), ("slipstream", "bold"), ("  models", "$foreground 70%"))
        shown = [device for device in self.devices if device.kind != "accel"]
        free = [f"{size(device.free_bytes)} of {size(device.total_bytes)} free" for device in shown]
        full = [f"{one_line(device.description)}: {words}" for device, words in zip(shown, free, strict=True)]
        short = [f"{KINDS[device.kind]}: {words}" for device, words in zip(shown, free, strict=True)]
        width = self.size.width
        for words in (full, short, full[:1], short[:1], []):
            right = " · ".join(words)
            if left.cell_length + len(right) + 2 <= width:
                break
        gap = Content(" " * max(width - left.cell_length - len(right), 1))
        return left.append(gap).append(Content(right).stylize("$foreground 70%"))
