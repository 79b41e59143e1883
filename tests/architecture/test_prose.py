"""Tests of tests/support/prose.py: each rule finds a bad sentence and accepts a good one."""

from pathlib import Path

import pytest

from support import prose

# For each rule, in its order: a sentence that it finds, and one that it does not.
EXAMPLES = [
    ("The caller is told that nothing was sent.", "The client logs that nothing was sent."),
    ("A page tells of each status.", "A page describes each status."),
    ("Whoever holds the claim may settle.", "The owner of the claim may settle."),
    ("It stops. Who asks twice, waits.", "It stops. The user who asks twice waits."),
    ("It stops. What is sent is masked.", "It stops. What does a retry cost?"),
    ("An empty body is none.", "An empty body is None."),
    ("As of `Ledger.claim`, and no more.", "Return the entry as of `now`."),
    ("How a call ends.", "Return the outcome of a call. How it ends is spec §7."),
    ("The loop stood still.", "The loop was blocked."),
    ("Mend this first.", "Recommended: amend the commit."),
    ("The same command goes on where it ended.", "The same command resumes; see the page on ledgers."),
    ("A full disk is no reason to stop.", "There is a reason to stop."),
    ("A crash takes nothing from the ledger.", "A crash takes one entry from the ledger."),
    ("No answer may be had.", "No response is available."),
    ("A report that came of it is kept.", "A report came from the service."),
    ("A call that is under way ends.", "A call in progress ends under the lock."),
    ("An error of ours is raised.", "An error of the client is raised."),
    ("The connection has news.", "The connection has unread data."),
    ("A forgotten client warns.", "An unclosed client warns."),
    ("The asker holds the lease.", "The owner holds the lease, and the task runs."),
]


def found(sentence: str, rule: prose.Rule) -> bool:
    text = f'"""{sentence}"""\n'
    return rule.suggestion in {each.suggestion for each in prose.check("module.py", text)}


def test_each_rule_has_examples() -> None:
    assert len(EXAMPLES) == len(prose.RULES)


@pytest.mark.parametrize(("rule", "example"), [*zip(prose.RULES, EXAMPLES, strict=True)])
def test_rule_finds_the_construction_and_nothing_else(rule: prose.Rule, example: tuple[str, str]) -> None:
    wrong, right = example
    assert found(wrong, rule)
    assert not found(right, rule)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("page.md", "# Title\n\nA call that is under\nway.\n", 3),
        ("page.md", "# Title\n\nIt stops.\nWhat is sent is masked.\n", 4),
        ("module.py", 'X = 1\n"""A module.\n\nA call that is under way.\n"""\n', 4),
        ("module.py", "x = 1\n# A call that is under\n# way.\n", 2),
        ("module.py", "x = 1  # under way\n", 1),
        ("module.py", "raise ValueError(\n    f'{1} is under way'\n)\n", 2),
        ("settings.toml", "[a]\n# A call that is under\n# way.\n", 2),
    ],
)
def test_finding_names_file_and_line(name: str, text: str, line: int) -> None:
    [finding] = prose.check(name, text)
    assert str(finding).startswith(f"{name}:{line}: ")


def test_code_is_not_checked() -> None:
    assert prose.check("module.py", "mend = asker = 1\nunderway(mend, 'asker')\n") == []


@pytest.mark.parametrize(
    ("test", "is_found"),
    [
        ("test_client_closes_its_session", False),
        ("test_what_is_sent", True),
        ("test_who_asks", True),
        (f"test_{'a' * (prose.LONGEST_TEST_NAME - 5)}", False),
        (f"test_{'a' * (prose.LONGEST_TEST_NAME - 4)}", True),
    ],
)
def test_name_of_a_test_is_checked(test: str, *, is_found: bool) -> None:
    text = f"async def {test}() -> None: ..."
    assert bool(prose.check("tests/unit/test_x.py", text)) is is_found
    assert prose.check("loanasync/x.py", text) == []


def test_files_are_those_of_people(tmp_path: Path) -> None:
    """Built pages, measurements and hidden folders are not checked."""
    checked = ["README.md", ".ci/run", "docs/index.md", "docs/conf.py", "tests/unit/test_x.py"]
    others = ["LICENSE", ".venv/a.py", "docs/_build/a.md", "docs/figures/a.json", "docs/a.png", "other/a.py"]
    for name in (*checked, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(each.relative_to(tmp_path).as_posix() for each in prose.files_of(tmp_path)) == sorted(
        checked
    )


def test_findings_are_printed_and_fail_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "good.md").write_text("It is in progress.")
    (tmp_path / "bad.md").write_text("It is under way.")
    assert prose.main([str(tmp_path / "good.md")]) == 0
    assert prose.main() == 1
    assert "bad.md:1: \"under way\": write 'in progress' or 'in flight'" in capsys.readouterr().out
