"""Chats kept on this machine."""
