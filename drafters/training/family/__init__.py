"""The recipe of the bundled models: their text, its stages and its commands. In a checkout only, not in the wheel."""
