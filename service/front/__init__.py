"""The front process: connections, tokenisation, the journal and the supervisor of the engine."""
