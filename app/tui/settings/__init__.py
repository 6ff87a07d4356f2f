"""The settings screen and its parts."""
