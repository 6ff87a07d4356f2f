"""The store of chats: one SQLite file with its search, backups, import and export.

Comes in: a person's messages, an engine's replies, exports. Goes out: chats, messages, search hits, requests' messages.
May import: settings, protocol, platform, speed; of the models and drafters only what deleting and images need.
"""
