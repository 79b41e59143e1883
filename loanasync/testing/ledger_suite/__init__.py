"""Conformance tests that every ledger must pass."""
