"""A paged KV cache manager."""
