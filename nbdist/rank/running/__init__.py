"""A cell running on a rank: its code, output and display."""
