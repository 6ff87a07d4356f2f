"""Files of trained heads: format, checks, import of published heads."""
