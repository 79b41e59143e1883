"""The pages of the documentation, the code on them, and the public packages."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "loanasync",
    *(f"loanasync.{name}" for name in ("bulk", "checkout", "errors", "ledger", "sandbox", "testing")),
    *("loanasync.worker", "loanasync.worker.nats", "loanasync.worker.redis"),
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the path of a page within the repository."""
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> str:
    """Return the Python of a page as one program, with the line numbers of the page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    program, inside = [], False
    for line in lines:
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        program.append(line if inside and not fence else "")
    return "\n".join(program)
