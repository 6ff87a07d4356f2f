"""The model hub: repositories, and downloads that survive a kill."""
