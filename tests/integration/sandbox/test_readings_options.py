"""Readings on the command line."""

import pytest

from support.cli import run, run_sandbox


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["refusl=201"], "unknown reading 'refusl': choose one of refusal, validation, conflict,"),
        (["refusal=200"], "reading refusal='200' must be one of '422', '201'"),
        (["refusal"], "reading refusal needs a value, for example refusal=422"),
        (["refusal=201", "refusal=422"], "reading refusal is given twice: choose one value"),
    ],
)
def test_invalid_reading_on_the_command_line_is_named(texts: list[str], message: str) -> None:
    options = [f"--reading={text}" for text in texts]
    for done in (run(None, "sandbox", *options), run_sandbox(*options)):
        assert done.returncode == 2
        assert done.stderr.startswith("the sandbox cannot start: ")
        assert message in done.stderr
