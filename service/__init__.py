"""The inference pod: a front process that owns connections, an engine process that owns memory."""
