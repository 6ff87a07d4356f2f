"""The benchmark screen and its parts."""
