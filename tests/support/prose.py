"""Check the language of docs, docstrings, comments, messages and test names.

`python tests/support/prose.py [PATH ...]` checks these files, or all files of the project. It prints each
finding as `file:line: "found": suggestion`, and exits with 1 if there is one. CONTRIBUTING.md has the rules.

Other linters do not fit: proselint takes no rules of a project, the wheel of Vale downloads a program when it
first runs, and codespell knows single words only. This script needs no package, so `nox -s lint` stays small.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LONGEST_TEST_NAME", "RULES", "Finding", "Rule", "check", "files_of", "main"]

ROOT = Path(__file__).resolve().parents[2]
LONGEST_TEST_NAME = 70
FOLDERS = (".ci", ".github", "benchmarks", "docs", "loanasync", "tests")
SUFFIXES = {"", ".css", ".html", ".jinja", ".js", ".json", ".md", ".py", ".toml", ".yaml", ".yml"}
SKIPPED = {"__pycache__", "_build", "figures"}  # built files, measurements

ALLOWED = {"tests/architecture/test_prose.py"}  # has an example of each rule


@dataclass(frozen=True)
class Rule:
    """A construction to avoid.

    Args:
        phrase: A regular expression; a space stands for any white space, and case does not matter.
        suggestion: The words to write instead.
        opens_docstring: Only the beginning of docstrings is searched.
    """

    phrase: str
    suggestion: str
    opens_docstring: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression; `re` caches it."""
        return re.compile(self.phrase.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """A passage to rewrite."""

    file: str
    line: int
    found: str
    suggestion: str

    def __str__(self) -> str:
        return f'{self.file}:{self.line}: "{self.found}": {self.suggestion}'


_SENTENCE = r"(?:^(?:[-*] )?|[.:;] )"
_REST = r" [a-z]+ [^?.:;|]{0,120}[.:;,]"

RULES = (
    Rule(
        r"\b(?:is|are|was|were|be|been|being) (?:told|heard)\b",
        "write reported, logged, printed, configured or noticed",
    ),
    Rule(
        r"\b(?:told|tells?|heard|hears?) (?:of|apart|nobody)\b",
        "write describes, reports, notices or distinguishes",
    ),
    Rule(r"\bwhoever\b", "name the person or program: the user, the caller, the owner"),
    Rule(
        rf"{_SENTENCE}(?-i:Who|Whose|Whatever){_REST}",
        "name the subject: a caller, the service, a value",
    ),
    Rule(rf"{_SENTENCE}(?-i:What){_REST}", "name the subject: a field, a response, a file"),
    Rule(
        r"\b(?:is|are) (?-i:none)\b|\bwith (?-i:none)\b|\bthere is such\b",
        "name the thing: 'there is no entry', 'is not a list'",
    ),
    Rule(
        rf"{_SENTENCE}(?-i:As of) `|\band so the others\b",
        "inherit the docstring, or write 'See `Name.method`.'",
    ),
    Rule(
        r"(?:what|who|whose|how|whether|where|whatever|as of|one that|all that|so,|with its)(?: |$)",
        "begin with a noun phrase or an imperative: 'Return ...', 'Send ...'",
        opens_docstring=True,
    ),
    Rule(r"\b(?:stood|stands?|standing) still\b|\bstandstill\b", "write 'the event loop was blocked'"),
    Rule(r"\bmend(?:s|ed|ing)?\b", "write fix, repair or correct"),
    Rule(r"\b(?:go(?:es)?|went|going) on (?:with|to its|where)\b|\bgone on\b", "write continue or resume"),
    Rule(r"\bno reason (?:to|for|that)\b", "say what happens: 'keeps the exit code'"),
    Rule(r"\btakes? nothing from\b", "say what is kept: 'the call finishes'"),
    Rule(r"\b(?:may|can|could) be had\b", "write 'is available' or 'can be read'"),
    Rule(r"\b(?:comes?|came) of (?:it|them|this|that)\b", "write 'the result' or 'the outcome'"),
    Rule(r"\bunder ?way\b", "write 'in progress' or 'in flight'"),
    Rule(r"\bof (?:ours|yours|theirs)\b", "name the owner: 'of the client', 'of your shop'"),
    Rule(r"\bhas news\b", "write 'has unread data'"),
    Rule(r"\bforgotten clients?\b", "write 'unclosed client'"),
    Rule(r"\baskers?\b", "write 'owner' or 'caller'"),
)
_BEFORE_WORDS = ".:;-* \n"
_SHOWN = 50  # characters of a finding
_RIDDLE = re.compile(r"test_(?:what|who|whose|whoever|where|how|whatever)_")


def files_of(root: Path) -> Iterator[Path]:
    """Return the files of a source tree whose text is checked."""
    yield from (
        each for each in sorted(root.iterdir()) if each.is_file() and _is_checked(each.relative_to(root))
    )
    for folder in FOLDERS:
        yield from (
            each
            for each in sorted((root / folder).rglob("*"))
            if each.is_file() and _is_checked(each.relative_to(root))
        )


def _is_checked(path: Path) -> bool:
    name = path.name
    hidden = name.startswith(".") and path.suffix not in {".yaml", ".yml"}
    return path.suffix in SUFFIXES and not hidden and name != "LICENSE" and not SKIPPED & set(path.parts)


def check(name: str, text: str) -> list[Finding]:
    """Return the findings in a file.

    Args:
        name: Path of the file, relative to the project.
        text: Its content.
    """
    if name in ALLOWED:
        return []
    found: list[Finding] = []
    if name.endswith(".py"):
        tree = ast.parse(text)
        texts = [*_strings(tree), *_comments(text)]
        found += _openers(name, tree)
        if Path(name).name.startswith(("test_", "checkers")):
            found += _test_names(name, tree)
    else:
        texts = [(1, re.sub(r"^[ \t]*#+ ?", "", text, flags=re.MULTILINE) if _has_comments(name) else text)]
    for first, part in texts:
        for rule in RULES:
            if not rule.opens_docstring:
                found += [
                    Finding(name, _line(part, first, match), _shortened(match[0]), rule.suggestion)
                    for match in rule.pattern.finditer(part)
                ]
    return sorted(found, key=lambda each: each.line)


def _has_comments(name: str) -> bool:
    return not name.endswith((".md", ".html", ".jinja"))


def _line(text: str, first: int, match: re.Match[str]) -> int:
    """Return the line of the first word that was found; the match may begin at the end of a sentence."""
    begin = match.end() - len(match[0].lstrip(_BEFORE_WORDS))
    return first + text.count("\n", 0, begin)


def _shortened(text: str) -> str:
    words = " ".join(text.split()).lstrip(_BEFORE_WORDS)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield docstrings, messages and other literals, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments, with their lines; those on lines after each other are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield first, "\n".join(block)
                block = []
            first = first if block else token.start[0]
            last = token.start[0]
            block.append(token.string.lstrip("#: "))
    if block:
        yield first, "\n".join(block)


def _openers(name: str, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            for rule in RULES:
                if rule.opens_docstring and rule.pattern.match(docstring):
                    line = node.body[0].lineno
                    yield Finding(name, line, _shortened(docstring.splitlines()[0]), rule.suggestion)


def _test_names(name: str, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            if len(node.name) > LONGEST_TEST_NAME:
                advice = f"use at most {LONGEST_TEST_NAME} characters; explain more in a docstring"
                yield Finding(name, node.lineno, node.name, advice)
            if _RIDDLE.match(node.name):
                yield Finding(name, node.lineno, node.name, "name it test_<unit>_<condition>_<result>")


def main(paths: Iterable[str] = ()) -> int:
    """Print the findings in these files, or in the whole project, and return the exit code."""
    named = [Path(each).resolve() for each in paths]
    files = [each for each in files_of(ROOT) if not named or each in named]
    found = [
        finding
        for file in files
        for finding in check(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    ]
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} places to rewrite; CONTRIBUTING.md has the rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
