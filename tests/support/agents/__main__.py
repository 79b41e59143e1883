"""Runs a shop with each monitoring agent, and compares the results with the record: `nox -s agents`.

`python -m support.agents FOLDER [AGENT ...]` makes two environments for each agent in the folder: with the
newest aiohttp, and with an older one. It exits with status 1 if a run proves nothing, or if a result differs
from the record. `--write` writes the record, which docs/contributing/privacy.md shows.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import privacy_page
from support.agents.runs import AGENTS, HEADERS, SESSIONS, Agent, play
from support.agents.shop import OWN, THROUGH_AIOHTTP, USERS, USERS_THROUGH_AIOHTTP

ROOT = Path(__file__).parents[3]
OLDER = "aiohttp==3.13.3"  # the client has no direct connections with it


def environment(agent: Agent, folder: Path, *versions: str) -> Path:
    """Make an environment with the newest version of an agent, and return its Python."""
    home = folder / "-".join((agent.name, *versions))
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    wanted = [*agent.packages, *agent.requirements, *versions, str(ROOT)]
    subprocess.run([python, "-m", "pip", "install", "-q", "--upgrade", *wanted], check=True)
    return python


def versions(agent: Agent, python: Path) -> dict[str, str]:
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    shown = subprocess.run(
        [python, "-c", script, *agent.packages], check=True, capture_output=True, text=True
    )
    return dict(zip(agent.packages, shown.stdout.split(), strict=True))


def results(agent: Agent, python: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the shop with each setting and session; return the results, and problems of the runs."""
    problems: list[str] = []
    found: dict[str, Any] = {}
    for setting in agent.settings:
        found[setting] = {}
        for session in SESSIONS:
            outcome = play(python, agent.name, setting, session, folder)
            title = f"{agent.name}, {setting}, {session}"
            problems += (f"{title}: {problem}" for problem in outcome.problems())
            added = sorted(outcome.headers - HEADERS)
            found[setting][session] = {"personal": bool(outcome.found), "headers": added}
            print(f"{title}: {', '.join(outcome.found) or 'nothing personal'}; headers added: {added}")
    return found, problems


def without_direct_connections(found: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a client that has no direct connections."""
    same = {OWN: THROUGH_AIOHTTP, USERS: USERS_THROUGH_AIOHTTP}
    return {
        setting: {session: each[same.get(session, session)] for session in each}
        for setting, each in found.items()
    }


def main() -> int:
    """Run the agents, and return the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="for the environments of the agents")
    parser.add_argument("agents", nargs="*", help="names of agents; without one, all")
    parser.add_argument("--write", action="store_true", help="write the record, which `nox -s pages` shows")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    record = json.loads(privacy_page.AGENTS.read_text(encoding="utf-8"))
    problems: list[str] = []
    for agent in AGENTS:
        if arguments.agents and agent.name not in arguments.agents:
            continue
        python = environment(agent, folder)
        found, failed = results(agent, python, folder)
        problems += failed
        if arguments.write:
            record[agent.name] = {"versions": versions(agent, python), "results": found}
        elif found != record[agent.name]["results"]:
            problems.append(f"{agent.name}: the results differ from the record; now {json.dumps(found)}")
        older, failed = results(agent, environment(agent, folder, OLDER), folder)
        problems += (f"{OLDER}: {each}" for each in failed)
        if older != without_direct_connections(found):
            problems.append(f"{agent.name}, {OLDER}: the results differ; now {json.dumps(older)}")
    if arguments.write and not problems:
        privacy_page.AGENTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(problems) or "each result is as recorded")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
