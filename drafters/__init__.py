"""The drafting methods: one file each, with a common interface."""
