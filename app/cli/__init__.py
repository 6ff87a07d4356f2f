"""The commands: parse, call, print. Each returns its exit code; ``main`` words every ``SlipstreamError``."""
