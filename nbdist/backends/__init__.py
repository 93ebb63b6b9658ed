"""How ranks communicate: PyTorch process groups, Horovod or XLA, and their recovery after a fault.

These modules run inside a user's training process, so importing one is cheap: the framework itself
(torch, horovod) is imported when a backend is created.
"""
