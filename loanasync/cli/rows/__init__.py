"""Input files: reading, parsing and conversion of rows, and files to which rows are appended."""
