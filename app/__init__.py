"""The application: commands, engine, chats, screens."""
