"""What ranks train and must hold alike: found, compared, made equal."""
