"""Planted personal values and the scanner that searches for them."""
