"""The direct path: requests are written directly to connections of an aiohttp session."""
