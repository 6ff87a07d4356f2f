"""The drafters screen and its parts."""
