"""Models of the requests, and the dialects in which they are written."""
