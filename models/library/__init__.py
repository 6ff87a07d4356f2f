"""The models on this machine, the catalogue, and the drafters for a model."""
