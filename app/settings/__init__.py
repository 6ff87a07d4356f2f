"""What the owner has settled: one file, typed and explained."""
