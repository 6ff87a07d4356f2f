"""Models, contexts and devices on llama.cpp.

In: model files and tokens. Out: logits and hidden states, what devices there are, what is wrong with an install.
May import: ``models.gguf``, ``models.chat_template``; every other package reaches llama.cpp through this one.
"""
