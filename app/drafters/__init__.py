"""``slipstream drafters``: trained heads are listed, made and imported."""
