"""The direct path: requests written to the connections of a session that the client opened."""
