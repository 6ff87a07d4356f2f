"""Slipstream and other engines that write the same turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from tests.bench.peers.figures import OUR_PLAIN, OURS, Replies
from tests.bench.peers.peer import Peer
from tests.bench.peers.process import PeerError
from tests.bench.peers.sweep import Sweep, Timing, Tried, Variant

from slipstream.app.bench.turns import BenchTurn, WrittenReply, write
from slipstream.app.engine.session import Session
from slipstream.models.errors import ContextFullError
from slipstream.models.types import Token


class Race:
    """Who takes part, and what was written so far.

    Attributes:
        peers: The other engines.
        replies: What each variant has written; slipstream's plain decoding is the first.
        tried: Settings that were tried, and how fast they were.
        left_out: Who is not, or no longer, part of it, and why.
    """

    def __init__(self, session: Session, ours: Sequence[str], tokens: int, n_ctx: int) -> None:
        """Begins with slipstream alone.

        Args:
            session: Slipstream's model.
            ours: Its drafters, plain decoding left out.
            tokens: Most tokens of a reply.
            n_ctx: Context of all engines.
        """
        self._session, self._tokens, self._n_ctx = session, tokens, n_ctx
        self._groups: list[list[tuple[Variant, Peer | None]]] = [
            [(OUR_PLAIN, None), *((Variant(OURS, name), None) for name in ours)]
        ]
        self._turns = 0
        self.peers: list[Peer] = []
        self.replies: dict[Variant, Replies] = {variant: Replies() for variant, _ in self._groups[0]}
        self.tried: list[Tried] = []
        self.left_out: list[str] = []

    def join(self, peer: Peer, prompts: Sequence[Sequence[Token]], tell: Callable[[str], None]) -> None:
        """Tries an engine's settings, and lets the fastest of each kind take part."""
        self.peers.append(peer)
        group: list[tuple[Variant, Peer | None]] = []
        for kind in peer.engine.groups:
            sweep = Sweep(peer.variants(kind), lambda variant, prompt: peer.reply(variant, prompt, self._tokens))
            best = sweep.run(prompts, tell)
            self.tried += sweep.tried()
            self.left_out += [f"{variant}: {reason}" for variant, reason in sweep.refused.items()]
            if best:
                group.append((best, peer))
                self.replies[best] = Replies()
        self._groups.append(group)
        peer.release()

    def fits(self, prompt: Sequence[Token]) -> bool:
        """Whether the longest reply fits behind a prompt, in every engine."""
        return len(prompt) + self._tokens <= self._n_ctx

    def reply(self, turn: BenchTurn) -> WrittenReply:
        """Has everyone write a turn, an engine after the other and nobody always first; returns the plain reply.

        Raises:
            ContextFullError: If it does not fit the context.
        """
        prompt = self._session.prompt(turn.messages)
        if not self.fits(prompt):
            raise ContextFullError("the prompt and the longest reply do not fit the context.")
        shift = self._turns % len(self._groups)
        self._turns += 1
        timings: dict[Variant, Timing] = {}
        plain: WrittenReply | None = None
        for group in self._groups[shift:] + self._groups[:shift]:
            inner = self._turns % max(1, len(group))
            for variant, peer in group[inner:] + group[:inner]:
                if peer is None:
                    written, timings[variant] = self._ours(variant.drafter, turn)
                    plain = written if variant == OUR_PLAIN else plain
                else:
                    try:
                        timings[variant] = peer.reply(variant, prompt, self._tokens)
                    except PeerError as error:
                        self._drop(variant, error.title)
            if group and (last := group[0][1]):
                last.release()  # one engine at a time holds the model
        assert plain is not None
        ours = timings[OUR_PLAIN]
        for variant, timing in timings.items():
            self.replies[variant].add((turn.kind, turn.prompt), timing, ours)
        return plain

    def _ours(self, drafter: str, turn: BenchTurn) -> tuple[WrittenReply, Timing]:
        self._session.forget()
        began = perf_counter()
        written = write(self._session, drafter, turn)
        wall, done = perf_counter() - began, written.done
        speed = done.speed
        return written, Timing(speed.tokens, written.work.seconds, wall, done.text, speed.drafted, speed.accepted)

    def _drop(self, variant: Variant, reason: str) -> None:
        """Leaves one out that cannot go on, with all that it wrote: the others have written more."""
        self.left_out.append(f"{variant}: {reason}")
        del self.replies[variant]
        for group in self._groups:
            group[:] = [entry for entry in group if entry[0] != variant]
