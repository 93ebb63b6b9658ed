"""The typed, encrypted channel of messages between agents and the hub."""
