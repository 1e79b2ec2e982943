"""The drill: everything that memory can do to a server, on purpose, under live streams.

Data and judgement are pure (`compare`, `record`, `sample`, `findings`, `timeline`, `verdict`);
`streams`, `watch` and `conductor` do the work against a server.
"""
