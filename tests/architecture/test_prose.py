"""Tests of tests/support/prose.py: each rule finds a bad sentence and accepts a good one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import prose

# For each rule, in its order: a text that it finds, and one that it does not.
EXAMPLES = [
    ("The caller is told that nothing was sent.", "The client logs that nothing was sent."),
    ("A page tells of each status.", "A page describes each status."),
    ("Whoever holds the claim may settle.", "The owner of the claim may settle."),
    ("It stops. Who asks twice, waits.", "It stops. The user who asks twice waits."),
    ("It stops.\nWhat is sent is masked.", "It stops. What does a retry cost?"),
    ("An empty body is none.", "An empty body is None."),
    ("As of `Ledger.claim`, and no more.", "Return the entry as of `now`."),
    ('"""How a call ends."""', '"""Return the outcome of a call. How it ends is spec §7."""'),
    ("The loop stood still.", "The loop was blocked."),
    ("Mend this first.", "Recommended: amend the commit."),
    ("The same command goes on where it ended.", "The same command resumes; see the page on ledgers."),
    ("A full disk is no reason to stop.", "There is a reason to stop."),
    ("A crash takes nothing from the ledger.", "A crash takes one entry from the ledger."),
    ("No answer may be had.", "No response is available."),
    ("A report that came of it is kept.", "A report came from the service."),
    ("# A call that is under\n# way.", "A call in progress ends under the lock."),
    ("An error of ours is raised.", "An error of the client is raised."),
    ("The connection has news.", "The connection has unread data."),
    ("A forgotten client warns.", "An unclosed client warns."),
    ("The asker holds the lease.", "The owner holds the lease, and the task runs."),
    (f"def test_{'a' * 66}() -> None:", f"def test_{'a' * 65}() -> None:"),
    ("async def test_what_is_sent() -> None:", "async def test_client_closes() -> None:"),
]


@pytest.mark.parametrize(("rule", "example"), [*zip(prose.RULES.items(), EXAMPLES, strict=True)])
def test_rule_finds_the_construction_and_nothing_else(
    rule: tuple[str, str], example: tuple[str, str]
) -> None:
    wrong, right = example
    found = prose.check("page.md", f"\n{wrong}\n")
    assert [each for each in found if re.match(r'page\.md:[23]: ".+": write ', each)] == found
    assert [each for each in found if each.endswith(f'": write {rule[1]}')]
    assert prose.check("page.md", f"\n{right}\n") == []


def test_finding_is_printed_and_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "tests" / "support").mkdir(parents=True)
    script = tmp_path / "tests" / "support" / "prose.py"
    script.write_bytes(Path(prose.__file__).read_bytes())
    (tmp_path / "README.md").write_text("It is\nunder way.")
    (tmp_path / "LICENSE").write_text("It is under way.")
    check = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert check.stdout == "README.md:2: \"under way\": write 'in progress' or 'in flight'\n"
    assert check.returncode == 1
    (tmp_path / "README.md").write_text("It is in progress.")
    assert subprocess.run([sys.executable, script], check=False).returncode == 0
