"""What `plimsoll smi` shows: from pages of metrics to a view, and from views to a picture. Pure."""
