"""What the server tells of itself to those who watch it."""
