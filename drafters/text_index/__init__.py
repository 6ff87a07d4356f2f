"""An index on disk over token ids of past chats and of folders: what followed the last words, wherever they stood?

One folder holds the text of one vocabulary: immutable segments, each a text with the sorted array of its contexts, and
a manifest that names the live ones and is replaced atomically. ``index.TextIndex`` is the whole of it to the outside.
"""
