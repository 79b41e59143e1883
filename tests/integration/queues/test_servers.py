"""A missing server program skips its tests, except in CI."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.servers import MissingServerError
from support.servers.fixtures import skip_missing_server
from support.servers.process import find_in_package, find_script


def test_missing_server_is_skipped_except_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(what: Callable[[], Path]) -> None:
        with skip_missing_server():
            what()

    for what in (lambda: find_in_package("no_such_package", "*"), lambda: find_script("no-such-program")):
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="no"):
            look(what)
        monkeypatch.setenv("CI", "true")
        with pytest.raises(MissingServerError):
            look(what)
