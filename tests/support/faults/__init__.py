"""The rows of the fault matrix and the code that plays them."""
