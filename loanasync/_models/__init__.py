"""The values that a shop sends."""
