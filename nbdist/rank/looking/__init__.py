"""Looking at a rank's variables without disturbing it."""
