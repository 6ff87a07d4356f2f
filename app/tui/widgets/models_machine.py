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


class Machine(Widget):
    """The memory of the GPUs and of the processor, as many of them as there is room for."""

    devices: reactive[tuple[Device, ...]] = reactive(())
    """What the machine has."""

    def render(self) -> Content:
        """Draws the line."""
        left = Content.assemble(("◢ ", "$primary"), ("slipstream", "bold"), ("  models", "$foreground 70%"))
        free = [
            (one_line(device.description or device.name), f"{size(device.free_bytes)} of {size(device.total_bytes)}")
            for device in self.devices
            if device.kind != "accel"
        ]
        width = self.size.width
        full = [f"{name}: {memory} free" for name, memory in free]
        for words in (full, full[:1], [f"{memory} free" for _, memory in free[:1]], []):
            right = " · ".join(words)
            if left.cell_length + len(right) + 2 <= width:
                break
        gap = Content(" " * max(width - left.cell_length - len(right), 1))
        return left.append(gap).append(Content(right).stylize("$foreground 70%"))
