"""The warm process of a host, which has imported torch and forks ranks, and its client."""
