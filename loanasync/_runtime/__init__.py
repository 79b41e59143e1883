"""Execution of a call: slots, attempts, deadline, retries, and the memory of approvals."""
