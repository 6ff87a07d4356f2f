"""Images in a prompt: their files, the projector that turns them into rows, and where these lie in the memory."""
