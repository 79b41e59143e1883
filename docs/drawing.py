"""Draws the picture of docs/contributing/architecture.md: one call and its packages (`nox -s pictures`)."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
PICTURE = HERE / "_static" / "architecture.svg"
WIDTH, MARGIN, TITLE_HEIGHT, INSET, GAP = 460, 8, 44, 9, 26


@frozen
class Step:
    """A step of a call, the packages that do it, and the step that it contains."""

    title: str
    packages: str
    kind: str = "pure"
    inner: "Step | None" = None

    @property
    def height(self) -> int:
        """Height in pixels, inner steps included."""
        return TITLE_HEIGHT if self.inner is None else TITLE_HEIGHT + self.inner.height + INSET


@frozen
class Box:
    """A step at its position in the picture."""

    step: Step
    left: int
    top: int

    @property
    def width(self) -> int:
        """Width that leaves the same margin on both sides."""
        return WIDTH - 2 * self.left


REQUEST = Step("one HTTP request", "_transport", "http")
ATTEMPT = Step("span of the attempt", "_telemetry", "async", REQUEST)
ATTEMPTS = Step("attempts: repeated after HTTP 500 only", "_runtime", "async", ATTEMPT)
SLOT = Step("slot of the concurrency limit", "_runtime", "async", ATTEMPTS)
LEDGER = Step("claim and settle, with a ledger", "ledger", "async", SLOT)
CALL = Step("span and metrics of the call", "_telemetry _log", "async", LEDGER)
MEMORY = Step("memory: one request for duplicate calls", "_runtime", "async", CALL)

STEPS = (
    Step("client.approve(...)", "_client _config _settings"),
    Step("check all rules of the specification", "_models _validation"),
    Step("write the request as JSON", "_protocol"),
    MEMORY,
    Step("read status and body", "_protocol"),
    Step("Approved, Refused or an error", "_results errors"),
)


def boxes() -> Iterator[Box]:
    """Yield all steps from top to bottom, each before its inner step."""
    top = MARGIN
    for outermost in STEPS:
        left, inner_top, step = MARGIN, top, outermost
        while True:
            yield Box(step, left, inner_top)
            if step.inner is None:
                break
            left, inner_top, step = left + INSET, inner_top + TITLE_HEIGHT, step.inner
        top += outermost.height + GAP


def arrows() -> Iterator[tuple[int, str]]:
    """Yield the top of each arrow, and its label."""
    top = MARGIN
    for step, following in pairwise(STEPS):
        top += step.height
        label = {MEMORY: "await begins"}.get(following, "await ends" if step is MEMORY else "")
        yield top, label
        top += GAP


def picture() -> str:
    """Return the picture as SVG. Its text and lines have the colour of the page around it."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    height = 2 * MARGIN + sum(step.height for step in STEPS) + GAP * (len(STEPS) - 1)
    template = environment.get_template("architecture.svg.jinja")
    return template.render(
        width=WIDTH, height=height, gap=GAP, middle=WIDTH // 2, boxes=list(boxes()), arrows=list(arrows())
    )


def main() -> None:
    """Write the picture to its file."""
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
