"""Faults on purpose: what a plan may order, and how the engine carries it out. Off by default."""
