"""The model hub: searches repositories, and downloads files; a download continues after a kill."""
