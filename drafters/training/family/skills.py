"""Chats from templates for two small skills: saying something politely, and finding files in a terminal."""

import itertools
import random

from slipstream.drafters.training.family.sources import Message, pairs_as_chats

_POLITE = (
    "Rewrite this sentence politely: {}", "Rewrite this sentence politely: {}", "Make this sentence polite: {}",
    "Say this politely: {}", "How can I say this more politely? {}", "Rewrite this in a polite way: {}",
    "Make this more polite: {}", "rewrite this politely: {}",
)  # fmt: skip
_ORDERS = {
    "Give me": "the salt, the ball, the key, that cup, the blue pen, the letter, some water, the map, a spoon",
    "Bring me": "the soup, a chair, the newspaper, a glass of milk, my coat, the bill, the other shoe, two apples",
    "Pass me": "the bread, the butter, the scissors, the big plate, the sugar, that hammer, the rope, a towel",
    "Show me": "the way, your garden, the new room, that picture, the station, your homework, the answer, the red one",
    "Open": "the window, the door, your bag, the gate, the box, the letter, the red book, your eyes",
    "Close": "the door, the window, the lid, that drawer, your book, the gate, the curtains, the bottle",
    "Help me": "with this bag, with my homework, to find my glasses, to move the table, with the dishes",
    "Tell me": "the time, your name, the truth, a story, the price, what happened, where she lives, the way",
    "Send me": "the letter, a picture, the list, your address, an answer, the new plan, that song",
    "Clean": "the room, the table, your shoes, the kitchen, the car, the windows, this cup",
    "Wait": "here, a moment, outside, for me, at the corner, for the bus",
    "Call": "me tomorrow, a doctor, your mother, a taxi, the school, me back",
    "Turn": "off the light, down the music, on the lamp, around, the page",
    "Read": "the letter, this page, me the news, the sign, the first line",
    "Wash": "your hands, the dishes, the apples, this shirt, the dog",
}
_FILES = {
    "text": "txt", "PDF": "pdf", "Python": "py", "image": "jpg", "PNG": "png", "music": "mp3", "log": "log",
    "zip": "zip", "HTML": "html", "CSV": "csv", "video": "mp4", "JSON": "json", "Markdown": "md", "C": "c",
    "XML": "xml", "CSS": "css",
}  # fmt: skip
_PLACES = {
    "in a folder": ".", "in this folder": ".", "here": ".", "in the current directory": ".", "below this folder": ".",
    "in my home folder": "~", "in my downloads": "~/Downloads", "in /tmp": "/tmp", "in my documents": "~/Documents",
}  # fmt: skip
_FIND = (
    "How do I find all {} files {}?", "Find all {} files {}.", "Which command finds all {} files {}?",
    "how do i find all {} files {}", "How can I search for {} files {}?", "Show me the command to find {} files {}.",
)  # fmt: skip
_COUNT = ("How many {} files are {}? Which command tells me?", "How do I count the {} files {}?")
_ANSWERS = ("Use this command:\n\n`{}`", "You can use `{}`.")


def chats(seed: int) -> list[list[Message]]:
    """Every order with its polite form in three wordings, and every kind of file in every place."""
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    for verb, rests in _ORDERS.items():
        for rest in rests.split(", "):
            order = f"{verb} {rest}"
            polite = f"Could you please {order[0].lower()}{order[1:]}?"
            pairs += [(ask.format(f"{order}."), polite) for ask in rng.sample(_POLITE, 3)]
    for (kind, ending), (where, place) in itertools.product(_FILES.items(), _PLACES.items()):
        find = f'find {place} -name "*.{ending}"'
        asks = [(ask, find) for ask in rng.sample(_FIND, 2)] + [(rng.choice(_COUNT), f"{find} | wc -l")]
        pairs += [(ask.format(kind, where), rng.choice(_ANSWERS).format(command)) for ask, command in asks]
    return pairs_as_chats(pairs)
