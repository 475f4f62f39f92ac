"""What measures a contender: the server, the handlers and their tally, the rows, the judge, the report.

Nothing here knows a contender by name but ``roster``; what a contender is, its own file in ``contenders/`` says.
"""
