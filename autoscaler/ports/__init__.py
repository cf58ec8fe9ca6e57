"""What the loop asks of the world: one Protocol a file."""
