"""The one typed, encrypted message channel between agents and the hub."""
