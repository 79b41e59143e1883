"""The direct path: requests are written to connections of a session that the client opened."""
