"""Check the language of docs, docstrings, comments, messages and test names.

`python tests/support/prose.py [PATH ...]` checks these files, or all files of the project. It prints each
finding as `file:line: "found": suggestion`, and exits with 1 if there is one. CONTRIBUTING.md has the rules.

Other linters do not fit: proselint takes no rules of a project, the wheel of Vale downloads a program when it
first runs, and codespell knows single words only. This script needs no package, so `nox -s lint` stays small.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", ".github", "benchmarks", "docs", "loanasync", "tests")
SUFFIXES = {"", ".css", ".html", ".jinja", ".js", ".json", ".md", ".py", ".toml", ".yaml", ".yml"}
SKIPPED = {"__pycache__", "_build", "figures"}  # built files, measurements
HAS_EXAMPLES = {"tests/support/prose.py", "tests/architecture/test_prose.py"}

_SENTENCE = r"(?:^(?:[#\t]* )?(?:[-*] )?|[.:;] )"
_REST = r" [a-z]+ (?:(?!\n\n)[^?.:;|]){0,120}[.:;,]"
_OPENERS = "what|who|whose|how|whether|where|whatever|as of|one that|all that|so,|with its"

# Regular expressions, in which a space may be the end of a line, and the words to write instead.
RULES = {
    r"\b(?:is|are|was|were|be|been|being) (?:told|heard)\b": "reported, logged, printed or noticed",
    r"\b(?:told|tells?|heard|hears?) (?:of|apart|nobody)\b": "describes, reports, notices or distinguishes",
    r"\bwhoever\b": "name the person or program: the user, the caller, the owner",
    rf"{_SENTENCE}(?-i:Who|Whose|Whatever){_REST}": "name the subject: a caller, the service, a value",
    rf"{_SENTENCE}(?-i:What){_REST}": "name the subject: a field, a response, a file",
    r"\b(?:is|are) (?-i:none)\b|\bwith (?-i:none)\b|\bthere is such\b": "name the thing: 'there is no entry'",
    rf"{_SENTENCE}(?-i:As of) `|\band so the others\b": "inherit the docstring, or 'See `Name.method`.'",
    rf'"""(?:{_OPENERS})(?: |$)': "begin with a noun phrase or an imperative: 'Return ...'",
    r"\b(?:stood|stands?|standing) still\b|\bstandstill\b": "'the event loop was blocked'",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair or correct",
    r"\b(?:go(?:es)?|went|going) on (?:with|to its|where)\b|\bgone on\b": "continue or resume",
    r"\bno reason (?:to|for|that)\b": "what happens: 'keeps the exit code'",
    r"\btakes? nothing from\b": "what is kept: 'the call finishes'",
    r"\b(?:may|can|could) be had\b": "'is available' or 'can be read'",
    r"\b(?:comes?|came) of (?:it|them|this|that)\b": "'the result' or 'the outcome'",
    r"\bunder ?way\b": "'in progress' or 'in flight'",
    r"\bof (?:ours|yours|theirs)\b": "the owner: 'of the client', 'of your shop'",
    r"\bhas news\b": "'has unread data'",
    r"\bforgotten clients?\b": "'unclosed client'",
    r"\baskers?\b": "'owner' or 'caller'",
    r"\bdef test_\w{66,}": "at most 70 characters; explain more in a docstring",
    r"\bdef test_(?:what|who|whose|whoever|where|how|whatever)_": "test_<unit>_<condition>_<result>",
}
_SPACE = r"(?:[^\S\n]+|[^\S\n]*\n[^\S\n]*#?[^\S\n]*(?=\S))"
_PATTERNS = {
    re.compile(phrase.replace(" ", _SPACE), re.IGNORECASE | re.MULTILINE): suggestion
    for phrase, suggestion in RULES.items()
}


def files() -> Iterator[Path]:
    """Yield the files of the project whose text is checked."""
    for each in (*ROOT.iterdir(), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))):
        hidden = each.name.startswith(".") and each.suffix not in {".yaml", ".yml"}
        known = each.suffix in SUFFIXES and each.name != "LICENSE" and not hidden
        if known and each.is_file() and not SKIPPED & set(each.parts):
            yield each


def check(name: str, text: str) -> list[str]:
    """Return the findings in the text of a file."""
    found = []
    for pattern, suggestion in _PATTERNS.items():
        for match in pattern.finditer(text):
            words = match[0].lstrip("#*.:;- \n")
            line = text.count("\n", 0, match.end() - len(words)) + 1
            found.append(f'{name}:{line}: "{" ".join(words.split())}": write {suggestion}')
    return found


def main(paths: list[str]) -> int:
    """Print the findings in these files, or in the whole project, and return the exit code."""
    found: list[str] = []
    for file in sorted({Path(each).resolve() for each in paths} or files()):
        name = file.relative_to(ROOT).as_posix()
        if name not in HAS_EXAMPLES:
            found += check(name, file.read_text(encoding="utf-8"))
    print(*found, sep="\n", end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
