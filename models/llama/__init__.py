"""One llama.cpp context, and what it needs."""
