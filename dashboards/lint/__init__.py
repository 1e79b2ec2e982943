"""Checks what promtool and Grafana let pass: each rule is a function from data to messages."""
