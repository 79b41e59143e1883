"""The search in the data of monitoring agents finds values in every encoding, and a run without data fails.

The runs with the agents themselves are `nox -s agents`.
"""

import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from urllib.request import Request, urlopen

import pytest
from attrs import evolve

import privacy_page
from support.agents import runs, shop
from support.agents.collector import collecting, unpacked
from support.agents.runs import AGENTS, SESSIONS, Outcome
from support.privacy.plants import CODE, found_in

PLAIN = f'{{"url": "https://loans.example.com/{CODE}"}}'.encode()
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zlib and base64 in JSON": lambda data: json.dumps([1, b64encode(zlib.compress(data)).decode()]).encode(),
    "gzip in a part of a form": lambda data: b"--part\r\n\r\n" + gzip.compress(data) + b"\r\n--part--",
    "zlib and base64 in gzip": lambda data: gzip.compress(b'["' + b64encode(zlib.compress(data)) + b'"]'),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_collector_finds_a_value_in_each_encoding(encoding: str) -> None:
    sent = ENCODINGS[encoding](PLAIN)
    assert PLAIN in list(unpacked(sent))
    with collecting() as collector:
        urlopen(Request(f"http://{collector.address}/intake", data=sent)).close()
    assert found_in(collector.text()) == {"the fiscal code"}


def test_collector_reads_chunked_bodies() -> None:
    with collecting() as collector:
        chunks = (PLAIN[:5], PLAIN[5:])
        request = Request(f"http://{collector.address}/intake", data=iter(chunks), method="PUT")
        urlopen(request).close()  # noqa: S310  (http)
    [(path, _, body)] = collector.received
    assert (path, body) == ("/intake", PLAIN)


MARKED = f"POST http://127.0.0.1/api/shops/{runs._MARK} {runs._MARK}"
GOOD = Outcome(0, "", set(runs._ROWS), sent=MARKED)


def test_run_with_all_requests_and_marks_has_no_problem() -> None:
    assert list(GOOD.problems()) == []
    assert GOOD.found == []
    assert evolve(GOOD, sent=MARKED + CODE).found == ["the fiscal code"]


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (evolve(GOOD, status=1, output="no module"), "the shop ended with status 1: no module"),
        (evolve(GOOD, rows=GOOD.rows - {"lost"}), "rows without a request: lost"),
        (evolve(GOOD, sent=runs._MARK), "did not send the URL of the shop's own request"),
        (evolve(GOOD, sent=f"/api/shops/{runs._MARK}"), "did not send the exception or the log record"),
    ],
)
def test_run_that_proves_nothing_is_a_problem(outcome: Outcome, problem: str) -> None:
    [found] = outcome.problems()
    assert problem in found


def test_record_has_each_agent_setting_and_session() -> None:
    record = json.loads(privacy_page.AGENTS.read_text(encoding="utf-8"))
    assert list(record) == [agent.name for agent in AGENTS] == list(shop.AGENTS)
    for agent in AGENTS:
        assert list(record[agent.name]["versions"]) == list(agent.packages)
        assert list(record[agent.name]["results"]) == list(agent.settings)
        for results in record[agent.name]["results"].values():
            assert list(results) == list(SESSIONS)


def test_only_cases_with_a_remedy_have_personal_data() -> None:
    """The page names a setting for each of them, which is a line of the table."""
    record = json.loads(privacy_page.AGENTS.read_text(encoding="utf-8"))
    personal = {
        (name, setting)
        for name, agent in record.items()
        for setting, results in agent["results"].items()
        if any(each["personal"] for each in results.values())
    }
    assert personal == {("ddtrace", shop.EVERYTHING), ("logfire", shop.EVERYTHING)}
