"""What a page shows of a job, and the bytes in which that travels.

The kernel and the Jupyter server both use it: nothing here imports torch, IPython or ipywidgets.
"""
