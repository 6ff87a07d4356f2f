"""Models, contexts and devices on llama.cpp."""
