"""The benchmark against other libraries: the server, the handlers and their tally, the rows, the judge, the report.

Only ``roster`` knows contenders by name. Each contender describes itself in its file in ``contenders/``.
"""
