"""One module per dashboard, and what they share."""
