"""The commands: parse, call, print. Each returns its exit code; ``main`` prints every ``SlipstreamError``."""
