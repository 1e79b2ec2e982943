"""Traces of requests, sent to an OTLP collector."""
