"""Images in a prompt: reads their files, and encodes them with the model's projector."""
