"""Requests written directly to pooled connections."""
