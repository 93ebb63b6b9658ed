"""How ranks talk to each other: each module joins a rank to its peers, frees and renews it.

These run inside somebody's training process, so importing them costs next to nothing: the
framework itself (torch, horovod) is imported when a backend is made.
"""
