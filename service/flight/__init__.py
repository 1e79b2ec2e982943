"""What a server writes down when something goes wrong, and how it is read again.

A *flight record* is a JSON file: what happened, the memory of the device by owner, the signals
of the last minute, the requests in flight, settings and versions. It holds no prompts and no
outputs, but the ids of requests and tenants are personal data: files and folder are for their
user alone.
"""
