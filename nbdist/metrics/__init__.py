"""What ranks have logged: read from their files, thinned for the screen, whole for analysis."""
