"""What happens when the problem grows."""
