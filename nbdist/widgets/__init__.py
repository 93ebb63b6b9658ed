"""A job's metrics in the notebook: live while it runs, a picture when it is over."""
