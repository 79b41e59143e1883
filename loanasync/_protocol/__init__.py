"""The HTTP API of the service, without any I/O."""
