"""Display of values: masked in `repr()` and logs, and as tables in notebooks."""
