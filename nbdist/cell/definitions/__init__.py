"""Source code of the notebook's functions and classes, checked to re-create what they are now."""
