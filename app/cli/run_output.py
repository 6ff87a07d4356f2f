"""What ``slipstream run`` prints: the answer as it streams, remarks on standard error, or JSON."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from slipstream.app.cli.streams import notice
from slipstream.app.platform.safe_text import MOST_MARKS, clean, one_line, plural
from slipstream.app.protocol.events import PROMISES, Choice, Done, Loaded, Piece, Stepped, failure_words
from slipstream.app.protocol.requests import Generate
from slipstream.app.settings.presets import FIELDS
from slipstream.app.speed import Speed, compared, speedup

_ENDED_BY: Final = {"stop": "the model", "length": "--max-tokens", "context": "a full context", "cancelled": "Ctrl-C"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerPrinter:
    """Prints one reply as it streams. A pipe gets only the answer, unchanged; a terminal gets it sanitized."""

    def __init__(self) -> None:
        self._before = ""  # end of the printed answer, see ``clean``
        self._thoughts = ""  # end of the printed reasoning
        self._styled = not os.environ.get("NO_COLOR")

    def take(self, thoughts: str, answer: str) -> None:
        if thoughts and sys.stderr.isatty():
            thoughts = thoughts if self._thoughts else thoughts.lstrip()
            words = clean(thoughts, self._thoughts)
            _write(sys.stderr, f"{_DIM}{words}{_PLAIN}" if self._styled and words else words)
            self._thoughts = (self._thoughts + thoughts)[-MOST_MARKS:]
        if answer:
            self._end_thoughts()
            _write(sys.stdout, clean(answer, self._before) if sys.stdout.isatty() else answer)
            self._before = (self._before + answer)[-MOST_MARKS:]

    def finish(self) -> None:
        self._end_thoughts()
        _write(sys.stdout, "\n")

    def _end_thoughts(self) -> None:
        if self._thoughts:
            _write(sys.stderr, "\n" if self._thoughts.endswith("\n") else "\n\n")
            self._thoughts = ""


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def print_step(step: Stepped, as_json: bool, printer: AnswerPrinter) -> None:
    if as_json:
        _print_json(
            text=text_of(step.pieces),
            tokens=step.tokens,
            drafter=step.drafter,
            drafted=step.drafted,
            accepted=step.accepted,
            ms=round(step.ms, 3),
            **({"expected": round(step.expected, 3)} if step.expected else {}),
            **({"choice": _choice(step.choice)} if step.choice else {}),
        )
    else:
        printer.take(step.parts.reasoning, text_of(step.parts.answer))


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def print_done(done: Done, answer: str, loaded: Loaded, generate: Generate, as_json: bool) -> None:
    for words in failure_words(done.failed):
        notice(f"{words}.")
    for name, why in done.silent.items():
        notice(f"{name} is silent: {why}.")
    if not done.complete:
        why = "the context is full" if done.reason == "context" else "it was interrupted"
        why = f"it reached {len(done.tokens):,} tokens" if done.reason == "length" else why
        notice(f"the answer is cut short and does not fit its grammar: {why}.")
    if not answer.strip():
        notice(_no_answer(done))
    if not as_json:
        if done.promise == "changed":
            notice("typical acceptance was on, which changes the text.")
        if done.dropped_messages:
            gone = plural(done.dropped_messages, "message"), plural(done.dropped_tokens, "token")
            notice(f"the context is full; left out of the beginning: {gone[0]} ({gone[1]}).")
        if done.reason == "context":
            notice("the reply ended because the context is full.")
        return
    speed = done.speed
    _print_json(
        done=done.reason,
        **({"lora": [{"file": each.path, "scale": each.scale} for each in loaded.lora]} if loaded.lora else {}),
        tokens=speed.tokens,
        prompt_tokens=done.prompt_tokens,
        prefilled_tokens=done.prefilled_tokens,
        tok_per_s=_rounded(speed.tok_per_s),
        acceptance=_rounded(speed.acceptance),
        tokens_per_step=_rounded(speed.tokens_per_step),
        speedup=_rounded(speed.speedup),
        plain_tok_per_s=_rounded(speed.plain_tok_per_s),
        **({"busy": True} if speed.busy else {}),
        ttft_ms=_rounded(done.ttft_ms),
        steps=speed.steps,
        drafted=speed.drafted,
        accepted=speed.accepted,
        by_depth=done.by_depth,
        by_drafter=done.by_drafter,
        phases={name: _rounded(ms) for name, ms in done.phases.items()},
        **({"auto": _chosen(done)} if done.auto else {}),
        dropped_messages=done.dropped_messages,
        dropped_tokens=done.dropped_tokens,
        seed=generate.sampling.seed,
        sampling={name: getattr(generate.sampling, name) for name in FIELDS},
        exact=done.promise == "same_text",
        promise=done.promise,
        **({"promise_why": loaded.promise_why} if loaded.promise_why else {}),
        **({"complete": done.complete} if generate.grammar else {}),
        **_thinking(done.speed, answer),
        **({"failed": done.failed} if done.failed else {}),
        **({"silent": done.silent} if done.silent else {}),
        text=done.text,
    )


def _no_answer(done: Done) -> str:
    by = _ENDED_BY[done.reason]
    if not done.speed.thought:
        return f"the reply is empty: {by} ended it at once."
    thoughts = plural(done.speed.thought, "token")
    return f"there is no answer: {by} ended the reply inside its thoughts ({thoughts}); --reasoning-budget limits them."


def print_stats(done: Done, loaded: Loaded, generate: Generate) -> None:
    speed, prompt = done.speed, plural(done.prompt_tokens, "token")
    why = f": {loaded.promise_why}" if done.promise == "same_odds" and loaded.promise_why else ""
    rows = [
        ("model", one_line(loaded.title)),
        ("prompt", f"{prompt}, {done.prefilled_tokens:,} of them read now; first token after {done.ttft_ms:,.0f} ms"),
        ("reply", f"{plural(speed.tokens, 'token')}, {speed.tok_per_s:.1f} tok/s, ended by {_ENDED_BY[done.reason]}"),
        ("drafting", _drafting(speed, generate.drafter)),
        ("seed", str(generate.sampling.seed)),
        ("promise", PROMISES[done.promise] + why),
    ]
    for name, words in rows:
        print(f"{name:<9} {words}", file=sys.stderr)


def _drafting(speed: Speed, drafter: str) -> str:
    if speed.acceptance is None:
        return f"{drafter}: nothing was guessed"
    right = f"{speed.accepted:,} of {speed.drafted:,} guesses right ({speed.acceptance:.0%})"
    gain = f", {compared(speed.speedup, speed.noise)}" if speed.speedup else ""
    return f"{drafter}: {right}, {speed.tokens_per_step:.2f} tokens per step{gain}"


def _thinking(speed: Speed, answer: str) -> dict[str, object]:
    if not speed.thought:
        return {}
    return {"thought_tokens": speed.thought, "thought_ms": _rounded(speed.thought_ms), "answer": answer}


def _choice(choice: Choice) -> dict[str, object]:
    return {
        "drafter": choice.drafter,
        "nodes": choice.nodes,
        "cost": _rounded(choice.cost),
        "expected": _rounded(choice.expected),
        **({"trial": True} if choice.trial else {}),
    }


def _chosen(done: Done) -> dict[str, dict[str, float | None]]:
    """The autopilot's choices: per drafter the expected and actual tokens, and the gain over plain decoding."""
    plain = 1 / done.speed.plain_tok_per_s if done.speed.plain_tok_per_s else None
    return {
        name: {
            "steps": chosen["steps"],
            "expected_tokens": _rounded(chosen["expected"]),
            "tokens": chosen["tokens"],
            "ms": _rounded(chosen["ms"]),
            "gain": _rounded(speedup(chosen["tokens"], chosen["ms"] / 1e3, plain)),
        }
        for name, chosen in done.auto.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _print_json(**values: object) -> None:
    sys.stdout.write(json.dumps(values, ensure_ascii=sys.stdout.isatty()) + "\n")
    sys.stdout.flush()
