"""Reading of responses without a connection."""

import pytest

from loanasync._transport.bodies import states_end


@pytest.mark.parametrize(
    ("headers", "is_stated"),
    [
        ({}, False),
        ({"Content-Length": "2"}, True),
        ({"Transfer-Encoding": "chunked"}, True),
        ({"Transfer-Encoding": "gzip, Chunked "}, True),
        ({"Transfer-Encoding": "chunked, gzip"}, False),
    ],
)
def test_response_states_its_end_by_a_length_or_by_chunks_at_last(
    headers: dict[str, str], *, is_stated: bool
) -> None:
    """RFC 9112 §6.3: only the last coding can be the one of chunks."""
    assert states_end(headers) is is_stated
