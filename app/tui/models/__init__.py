"""The models screen and its parts."""
