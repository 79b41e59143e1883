"""The search in the data of monitoring agents finds values in every encoding, and a run without data fails.

The runs with the agents themselves are `nox -s agents`.
"""

import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from attrs import evolve

import privacy_page
from support.agents import __main__ as session
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


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Outcome]:
    """The outcome of the runs of each session, instead of those of the agent; the record is a copy.

    All runs with the older aiohttp have the same outcome.
    """
    by_session = {**dict.fromkeys(SESSIONS, GOOD), session.OLDER: GOOD}
    record = tmp_path / "agents.json"
    record.write_bytes(privacy_page.AGENTS.read_bytes())
    page = tmp_path / "privacy.md"
    page.write_bytes(privacy_page.PAGE.read_bytes())
    monkeypatch.setattr(privacy_page, "AGENTS", record)
    monkeypatch.setattr(privacy_page, "PAGE", page)
    monkeypatch.setattr(session, "environment", lambda _, __, version="python": Path(version))
    monkeypatch.setattr(session, "versions", lambda *_: {"sentry-sdk": "9.9"})
    monkeypatch.setattr(
        session,
        "play",
        lambda python, _, __, kind, ___: by_session[session.OLDER if python.name == session.OLDER else kind],
    )
    return by_session


def status(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["agents", ".", "sentry", *options])
    return session.main()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (GOOD, "each result is as recorded"),
        (evolve(GOOD, sent=MARKED + CODE), "sentry: the results differ from the record"),
        (evolve(GOOD, headers={"baggage"}), "sentry: the results differ from the record"),
        (evolve(GOOD, sent=""), "sentry, default, yours: the agent did not send the URL"),
    ],
)
def test_session_fails_if_a_result_differs_from_the_record(
    outcome: Outcome,
    expected: str,
    outcomes: dict[str, Outcome],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes[shop.USERS] = outcome
    assert status(monkeypatch) == int(outcome is not GOOD)
    assert expected in capsys.readouterr().out


def test_session_fails_if_results_with_an_older_aiohttp_differ(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes[session.OLDER] = evolve(GOOD, headers={"baggage"})
    assert status(monkeypatch) == 1
    assert "sentry, aiohttp==3.13.3: the results differ" in capsys.readouterr().out
    outcomes[session.OLDER] = evolve(GOOD, sent="")
    assert status(monkeypatch) == 1
    assert "aiohttp==3.13.3: sentry, default, its own: the agent did not" in capsys.readouterr().out


def test_older_aiohttp_has_the_results_without_direct_connections(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (shop.THROUGH_AIOHTTP, shop.USERS_THROUGH_AIOHTTP, session.OLDER):
        outcomes[kind] = evolve(GOOD, headers={"tracestate"})
    assert status(monkeypatch, "--write") == 0
    assert status(monkeypatch) == 0


def test_session_writes_the_record_and_the_table(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes[shop.USERS] = evolve(GOOD, sent=MARKED + CODE)
    assert status(monkeypatch, "--write") == 0
    assert status(monkeypatch) == 0
    text = privacy_page.PAGE.read_text(encoding="utf-8")
    assert "| sentry-sdk 9.9 | default | nothing | nothing | **personal data** |" in text


def test_session_writes_no_record_of_a_run_that_proves_nothing(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = privacy_page.AGENTS.read_bytes()
    outcomes[shop.USERS] = evolve(GOOD, sent="")
    assert status(monkeypatch, "--write") == 1
    assert privacy_page.AGENTS.read_bytes() == before
