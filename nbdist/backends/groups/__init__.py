"""Gloo, NCCL and stores as persistent ranks use them, a registry of groups, ways to recover."""
