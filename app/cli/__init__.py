"""The commands of the command line. Each returns its exit code; ``main`` prints every ``SlipstreamError``."""
