"""Sending of one HTTP request, over aiohttp."""
