"""Process groups and stores as ranks that stay need them, and how they come back after a fault."""
