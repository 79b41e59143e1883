"""The direct path: requests are written directly to the connections of a session that the client opened."""
