"""What a rank logs and measures of itself."""
