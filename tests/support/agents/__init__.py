"""Monitoring agents, a collector that receives their data, and a shop that runs with each of them."""
