"""Rows of a file that `approve-many` reads."""
