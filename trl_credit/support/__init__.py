"""Errors in one line, atomic files, functions by name, signals, packaged files. Imports no other subpackage."""
