"""Draw the architecture: one call and the packages that it passes (`nox -s pictures`)."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
PICTURE = HERE / "_static" / "architecture.svg"
WIDTH, EDGE, HEAD, INSET, GAP = 460, 8, 44, 9, 26


@frozen
class Stage:
    """A step of a call, the packages that do it, and the step within it."""

    what: str
    packages: str
    kind: str = "pure"
    within: "Stage | None" = None

    @property
    def height(self) -> int:
        """With all that stands within."""
        return HEAD if self.within is None else HEAD + self.within.height + INSET


@frozen
class Box:
    """A stage where it is drawn."""

    stage: Stage
    left: int
    top: int

    @property
    def width(self) -> int:
        """To the same distance from the other edge."""
        return WIDTH - 2 * self.left


REQUEST = Stage("one HTTP request", "_transport", "wire")
ATTEMPT = Stage("a span for each attempt", "_telemetry", "awaits", REQUEST)
ATTEMPTS = Stage("attempts: after a 500 only", "_runtime", "awaits", ATTEMPT)
SLOT = Stage("a slot among the concurrent calls", "_runtime", "awaits", ATTEMPTS)
LEDGER = Stage("a ledger, if there is one", "ledger", "awaits", SLOT)
CALL = Stage("a span and metrics for the call", "_telemetry _log", "awaits", LEDGER)
MEMORY = Stage("earlier approvals of this process", "_runtime", "awaits", CALL)

WAY = (
    Stage("client.approve(...)", "_client _config _settings"),
    Stage("every broken rule at once", "_models _validation"),
    Stage("the request as JSON, in the dialect", "_protocol"),
    MEMORY,
    Stage("the status and the body are read", "_protocol"),
    Stage("Approved or Refused, or an error", "_results errors"),
)


def boxes() -> Iterator[Box]:
    """All stages, from top to bottom, and from the outside to the inside."""
    top = EDGE
    for stage in WAY:
        left, inner, at = EDGE, top, stage
        while True:
            yield Box(at, left, inner)
            if at.within is None:
                break
            left, inner, at = left + INSET, inner + HEAD, at.within
        top += stage.height + GAP


def arrows() -> Iterator[tuple[int, str]]:
    """Where an arrow begins, and what is said beside it."""
    top = EDGE
    for stage, following in pairwise(WAY):
        top += stage.height
        said = {MEMORY: "await begins"}.get(following, "await ends" if stage is MEMORY else "")
        yield top, said
        top += GAP


def picture() -> str:
    """The picture as SVG; its text and lines have the colour of the page around it."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    height = 2 * EDGE + sum(stage.height for stage in WAY) + GAP * (len(WAY) - 1)
    template = environment.get_template("architecture.svg.jinja")
    return template.render(
        width=WIDTH, height=height, gap=GAP, middle=WIDTH // 2, boxes=list(boxes()), arrows=list(arrows())
    )


def main() -> None:
    """Draw it."""
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
