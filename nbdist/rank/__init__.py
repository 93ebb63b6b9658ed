"""What runs inside a training process; light, since it sits in somebody's training."""
