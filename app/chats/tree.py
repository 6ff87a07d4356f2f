"""The branches of a chat: which messages follow which, and which of several are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Tree:
    """The messages of a chat by their numbers; of siblings, the one that was picked last is shown."""

    def __init__(self, nodes: Iterable[tuple[int, int | None, int]]) -> None:
        """Takes ``(number, parent, picked)`` of every message, refused ones left out, by number."""
        self._children: dict[int | None, list[int]] = defaultdict(list)
        self._parent: dict[int, int | None] = {}
        self._picked: dict[int, int] = {}
        for number, parent, picked in nodes:
            self._children[parent].append(number)
            self._parent[number] = parent
            self._picked[number] = picked

    def shown(self) -> list[int]:
        """The branch that is shown, from the first message on."""
        branch: list[int] = []
        at: int | None = None
        while siblings := self._children.get(at):
            at = max(siblings, key=lambda number: (self._picked[number], number))
            branch.append(at)
        return branch

    def siblings(self, message: int) -> list[int]:
        """The messages that stand in one place with this one, itself among them, oldest first."""
        return self._children[self._parent[message]]

    def above(self, message: int) -> list[int]:
        """The message and all that lead to it, the first of the chat last; empty if it is not in the tree."""
        branch: list[int] = []
        at: int | None = message
        while at is not None and at in self._parent:
            branch.append(at)
            at = self._parent[at]
        return branch
