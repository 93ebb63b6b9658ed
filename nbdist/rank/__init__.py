"""Code that runs inside a rank, a user's training process; its imports must stay light."""
