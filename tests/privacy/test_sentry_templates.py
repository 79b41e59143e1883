"""Sentry records no person and no token of a Django shop with the settings of docs/howto/web.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
BOTH = "max_request_body_size, include_local_variables"


def test_sentry_records_no_person_if_the_shop_does_as_the_page_says() -> None:
    """Each setting is necessary, and so is `render_to_string` for a context with the form or the URL."""
    result = subprocess.run(
        [sys.executable, "-m", "support.sentry_templates"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    found = {tuple(case): fields for *case, fields in json.loads(result.stdout)}
    objects, values = "objects of loanasync", "form and URL"
    assert [case for case, fields in found.items() if not fields] == [
        (BOTH, "render", objects),
        (BOTH, "TemplateResponse", objects),
        (BOTH, "render_to_string", objects),
        (BOTH, "render_to_string", values),
    ]
    for rendered in ("render", "TemplateResponse"):
        shown = set(found.pop((BOTH, rendered, values)))
        assert {"the fiscal code", "Approved.redirect_url", "Refused.first_name"} <= shown
    assert [case[0] for case, fields in found.items() if fields] == BOTH.split(", ")
    page = (TESTS.parent / "docs/howto/web.md").read_text(encoding="utf-8")
    assert '`max_request_body_size="never"` and `include_local_variables=False`' in page
