"""Shows a job's metrics in the notebook: live while it runs, then as a picture and tables."""
