"""Part ``peers``: slipstream and other engines, turn by turn on the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import llama_cpp
from tests.bench.peers.choice import PeerChoice
from tests.bench.peers.engines import Engine
from tests.bench.peers.figures import OURS, PeerReport, best_pairs, peer_figures
from tests.bench.peers.peer import Peer, PeerModel
from tests.bench.peers.process import PeerError
from tests.bench.peers.race import Race
from tests.bench.plain import opened as opened_alone

from slipstream.app.bench.estimate import Estimate
from slipstream.app.bench.turns import ReplyPlan, play, session_of, usable_drafters
from slipstream.app.engine.session import Session
from slipstream.app.protocol.requests import Load
from slipstream.drafters.base import Plain
from slipstream.models.errors import ContextFullError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Token


def compare_peers(request: Load, plan: ReplyPlan, peers: PeerChoice, tell: Callable[[str], None]) -> PeerReport:
    """Runs other engines at their best and slipstream, all on the same tokens, at the first of the plan's temperatures.

    First the settings of each engine are tried on the prompts, and the fastest of each kind are kept. Then every turn
    is written by slipstream and by each engine in turn; who comes first changes. Of the other engines only the one that
    writes has the model loaded.

    Args:
        plan: Which replies, and with which of slipstream's drafters.
        peers: Which engines.
        tell: Hears how far it is.

    Returns:
        The figures; an engine that is missing, refuses or dies is a line of them.

    Raises:
        UsageError: If none of slipstream's drafters that were asked for can serve.
        SlipstreamError: If slipstream cannot load the model, or no prompt fits.
    """
    plan = replace(plan, temperatures=plan.temperatures[:1], seeds=(1,), typical=None)
    with ExitStack() as opened:
        threads = request.threads or _threads(Path(request.model))
        request = replace(request, drafter=Plain.name, threads=threads)
        session, loaded = opened.enter_context(session_of(request))
        usable, unusable = usable_drafters(session, loaded, plan.names)
        race = Race(session, usable, plan.tokens, loaded.n_ctx)
        race.left_out += [f"{OURS} {name}: {reason}." for name, reason in unusable.items()]
        own = session.target.options if isinstance(session.target, LlamaTarget) else ContextOptions()
        model = PeerModel(
            model=request.model,
            draft_model=request.draft_model,
            n_ctx=loaded.n_ctx,
            kv="q8_0" if own.same_text else "f16",
            flash=True if own.same_text else False if own.scores else None,
            threads=threads,
            temperature=plan.temperatures[0],
        )
        prompts = [prompt for prompt in _first_prompts(session, plan) if race.fits(prompt)]
        for name in peers.names if prompts else ():
            try:
                peer = Peer(Engine.named(name), model, peers.python)
            except PeerError as error:
                line = f"{error.title} {error.hint}".strip()
                race.left_out.append(line)
                tell(f"peers: {line}")  # now, not in ten minutes
                continue
            opened.callback(peer.release)
            race.join(peer, prompts, tell)
        untimed = Estimate([], plan.tokens)
        counts = play(plan, loaded.n_ctx, lambda place: tell(f"peers: {place}"), untimed, race.reply)
        return PeerReport(
            model=loaded.name,
            threads=threads,
            kv=model.kv,
            flash=model.flash,
            reply=plan.tokens,
            temperature=plan.temperatures[0],
            prompts={kind: replied for kind, (replied, _) in counts.items()},
            too_long={kind: long for kind, (_, long) in counts.items()},
            builds={OURS: our_build(), **{peer.engine.name: peer.build for peer in race.peers}},
            rows=peer_figures(race.replies, {peer.engine.name: peer.version for peer in race.peers}),
            best=best_pairs(race.replies),
            tried=race.tried,
            left_out=race.left_out,
        )


def our_build() -> str:
    """What slipstream's llama.cpp was built for, in its own words."""
    return str(llama_cpp.llama_print_system_info().decode("utf-8", "replace")).strip()


def _threads(model: Path) -> int:
    """As many threads as help this model on this machine now, measured before anyone runs."""
    with opened_alone(model, ContextOptions(n_ctx=256)) as target:
        return target.threads


def _first_prompts(session: Session, plan: ReplyPlan) -> list[list[Token]]:
    """The first turn of every prompt, one of each kind of text after the other."""
    found = []
    for at in range(max(len(kind.prompts) for kind in plan.sets)):
        for kind in plan.sets:
            if at < len(kind.prompts):
                with suppress(ContextFullError):
                    found.append(session.prompt(kind.prompts[at].messages))
    return found
