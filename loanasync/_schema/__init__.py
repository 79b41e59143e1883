"""JSON Schema of the request models, and their validation in pydantic models and FastAPI routes."""
