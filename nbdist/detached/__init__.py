"""Jobs that outlive the notebook's kernel."""
