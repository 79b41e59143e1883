"""Code shared by the tests: builders, servers, clients over scripts, scanners and fixtures."""
