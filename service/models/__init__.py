"""Model files and model code: where a model comes from, what it is, how it computes."""
