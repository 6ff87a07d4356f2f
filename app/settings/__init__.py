"""The settings, presets and switched-off drafters: TOML files that a person may edit, too.

In: a path, or a change. Out: checked values, and what is wrong with the file. May import protocol, platform and models.
"""
