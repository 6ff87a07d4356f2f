"""The drafting methods, one file each, one interface."""
