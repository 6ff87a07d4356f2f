"""The race: a reply with a drafter and without, side by side."""
