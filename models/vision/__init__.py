"""Images in a prompt.

In: image files and mmproj files. Out: facts of an image, and its rows for a context.
May import: ``models.llama``, ``models.gguf``.
"""
