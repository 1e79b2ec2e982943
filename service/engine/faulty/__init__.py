"""Faults on purpose, as wrappers around what the engine computes and remembers with.

Nothing outside knows of them: without `allow_faults` no wrapper is made.
"""
