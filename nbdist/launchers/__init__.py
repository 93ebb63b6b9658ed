"""How ranks come to life. Launchers start, signal and stop ranks; nothing else."""
