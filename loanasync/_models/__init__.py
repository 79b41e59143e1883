"""Request models and dialects."""
