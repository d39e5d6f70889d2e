"""Engine processes: started, fed, watched and restarted, for `batch` and `serve`.

A worker is such a process; an instance is the place for one, with cores and memory of its own, as users ask for them by
`--instances`. Both speak JSON lines over pipes (request_loop.py), by hand in tests/batch_fake.py.
"""
