"""An index on disk over the token ids of past chats and of folders, which finds the continuations of the last words.

One folder holds the text of one vocabulary: immutable segments, each a text with the sorted array of its contexts, and
a manifest that names the live ones and is replaced atomically. ``index.TextIndex`` is the interface.
"""
