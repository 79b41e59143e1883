"""pytest plugin that gives each run its own home folder, temporary folder and folders of the XDG standard.

No test depends on files of this machine, such as orphan files of another user. Processes that tests start and
workers of pytest-xdist inherit the environment variables. At the end of the run, the folders are deleted.
"""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

VARIABLES = (
    *("HOME", "MPLCONFIGDIR", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
)


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # it has inherited the variables
        return
    temporary = tempfile.gettempdir()
    # A short path, because the path of a Unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    folder.chmod(0o755)  # PostgreSQL may run as another user
    patch = pytest.MonkeyPatch()
    for name in VARIABLES:
        (folder / name).mkdir(mode=0o755 if name == "TMPDIR" else 0o700)
        patch.setenv(name, str(folder / name))
    patch.setattr(tempfile, "tempdir", str(folder / "TMPDIR"))
    # `tmp_path` stays outside: pytest keeps it after a run, so that you can read the files of a failed test.
    patch.setenv("PYTEST_DEBUG_TEMPROOT", os.environ.get("PYTEST_DEBUG_TEMPROOT", temporary))
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    config.add_cleanup(patch.undo)
