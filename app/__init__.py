"""The application: commands, engine, chats, screens."""

import slipstream.models  # noqa: F401 (it sets what libraries read when they are loaded; NumPy must come after it)
