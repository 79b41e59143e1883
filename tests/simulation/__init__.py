"""A simulated world in which the real client, memory, ledger code, bulk code and worker code run.

A seed selects a schedule: programs, calls, people, and faults of network, service, ledger and processes. Time
is virtual, and nothing depends on the machine, so a seed replays exactly. The service of the world knows the
truth, and `invariants` compares it with everything that the package returned, stored, sent and printed.
`python -m simulation --help` lists the options; CONTRIBUTING explains how to read a failing seed.

- `chance` makes all choices, from the seed and the name of the choice.
- `event_loop` is an asyncio event loop with virtual time; `world` steps one of them for each process.
- `service`, `network`, `store` and `effects` simulate everything outside the package.
- `plan` generates and shrinks a schedule; `actors` performs its actions; `record` keeps what happened.
- `runner` runs schedules and prints the story of a failing one; `mutants` plants faults that it must find.
"""
