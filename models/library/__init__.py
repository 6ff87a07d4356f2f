"""The models on this machine, the catalogue, and which drafters serve a model."""
