"""The settings: one typed TOML file."""
