"""Dashboards and alerts of the service as code, from its catalogue of metrics."""
