"""Pure functions for the HTTP API of the service: requests to bytes, responses to results."""
