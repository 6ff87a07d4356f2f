"""What this machine has, what is broken, and what would be faster."""
