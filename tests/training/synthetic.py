"""Rows in the shape of the real sources, made of a few words."""

import json
import random

_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry")
_THINGS = ("boat", "bird", "tree", "river", "house", "stone", "apple", "horse", "cloud", "drum")
_DOES = ("finds", "sees", "likes", "paints", "carries", "follows", "hears", "draws")


def rows(rng: random.Random) -> dict[str, list[str]]:
    """JSON lines by source name."""

    def sentence() -> str:
        return f"{rng.choice(_NAMES)} {rng.choice(_DOES)} a {rng.choice(_THINGS)} near the {rng.choice(_THINGS)}."

    def chat(source: str, *turns: str) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        return json.dumps({"source": source, "messages": messages}) + "\n"

    def text(source: str, words: str) -> str:
        return json.dumps({"source": source, "text": words}) + "\n"

    def long(count: int) -> str:
        return " ".join(sentence() for _ in range(count))

    return {
        "gpteacher": [chat("gpteacher", f"Say more: {sentence()}", long(3)) for _ in range(700)],
        "synthetic_persona_chat": [
            chat("synthetic_persona_chat", "Hi!", sentence(), sentence(), sentence()) for _ in range(300)
        ],
        "pratham_books": [text("pratham_books", f"The {thing}\n\n{long(12)}") for thing in _THINGS],
        "fairytaleqa_stories": [text("fairytaleqa_stories", long(80)) for _ in range(20)],
        "simple_dictionary": [
            chat("simple_dictionary", f'What does "{thing}" mean?', f'"{thing}" means: (noun) a thing like a {other}.')
            for thing in _THINGS
            for other in _THINGS
        ],
        "tldr": [
            text("tldr", f"# {thing}\n\n> Show a {thing}.\n\n- Show [o]ne:\n\n`{thing} {{{{[-o|--one]}}}}`")
            for thing in _THINGS
        ],
    }
