"""The SDK against every reading of the specification, in memory: `nox -s readings`."""
