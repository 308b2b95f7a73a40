"""Policies: networks, files, other libraries' formats, functions, export."""
