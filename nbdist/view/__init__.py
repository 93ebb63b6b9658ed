"""Collects what a page shows of a job, and encodes it for the page.

Both the kernel and the Jupyter server use it, so nothing here imports torch, IPython or ipywidgets.
"""
