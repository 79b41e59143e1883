"""Queues with worker processes that tests kill."""
