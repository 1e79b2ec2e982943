"""Load on a running server, and what it measured.

`workload`, `prompt_files`, `traces` and `synthetic` say what is asked, `arrivals` when,
`load` asks and writes records, `stats` and `summary` turn records into figures, `table`,
`document` and `plot` show them.
"""
