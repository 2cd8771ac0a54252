"""Tools around a query: explain, trace, advise, forecast, test cases, the page and the drawing board, Substrait.

Only the command line and the Python API import this package.
"""
