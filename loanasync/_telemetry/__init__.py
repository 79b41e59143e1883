"""Spans, metrics and trace headers of calls."""
