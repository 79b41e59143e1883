"""The rules of the specification for what is sent."""
