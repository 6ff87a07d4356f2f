"""The store of chats."""
