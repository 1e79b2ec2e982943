"""The engine process: scheduler, KV cache manager and model runner."""
