"""aiohttp's parser in Python, which is used without its C extension, gives the same results."""

import os
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parent


def test_python_parser_gives_the_same_results() -> None:
    """Unlike the parser in C, it accepts a repeated Content-Length."""
    files = ("test_response_heads.py", "test_fault_matrix.py", "test_raw_responses.py")
    played = [str(FAULTS / each) for each in files]
    raw = "test_raw_responses and head and behind and not https"
    rows = f"({raw} or test_response_heads or two-lengths or bad-chunk) and through"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", *played, "-k", rows],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "AIOHTTP_NO_EXTENSIONS": "1"},
    )
    assert done.returncode == 0, done.stdout
