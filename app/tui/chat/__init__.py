"""The chat screen: shows one chat, and runs its commands.

In come keys, stored chats and the engine's events; out go requests to the engine and changes to the chats. Imports the
other rooms of the interface, ``library``, ``bench``, ``chats``, ``settings``, ``protocol`` and ``platform``.
"""
