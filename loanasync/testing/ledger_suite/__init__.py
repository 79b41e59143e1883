"""Tests that every ledger must pass."""
