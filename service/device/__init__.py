"""Memory of the device: who takes it, what is left, and what it means when it runs out."""
