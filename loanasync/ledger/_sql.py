"""The moves of the ledger in PostgreSQL, one statement each, for a table of any name."""

from attrs import fields, frozen

from loanasync.ledger._entries import Entry
from loanasync.ledger._remote import VERSION

__all__ = ["Statements"]

_PAGE = 500  # entries that a scan reads at once, between which others have their turn
# The server's clock, as it is at this moment: not as it was when a caller's transaction began.
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_CLOCK = f"(SELECT {_NOW} AS now) AS clock"
_ROW = f"{_NOW} AS now, version, {', '.join(each.name for each in fields(Entry))}"
# Servers and users can be set up not to wait for the disk; a transaction that returns this waits for it.
_SAFELY = """
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    key text COLLATE "C" PRIMARY KEY, version smallint NOT NULL,
    state text NOT NULL, token text NOT NULL, payload text NOT NULL,
    claimed float8 NOT NULL, changed float8 NOT NULL, expires float8 NOT NULL, takeovers integer NOT NULL,
    note text NOT NULL, status smallint, body bytea, fault text
)
"""

# key, token, payload, lease, token to take over or NULL. No row comes back from who has no right to it.
_CLAIM = f"""
INSERT INTO {{table}} AS found
    (version, key, state, token, payload, claimed, changed, expires, takeovers, note)
SELECT {VERSION}, $1, 'inflight', $2, $3, now, now, now + $4::float8, 0, '' FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    state = excluded.state, token = excluded.token, payload = excluded.payload,
    claimed = CASE found.state WHEN 'released' THEN excluded.claimed ELSE found.claimed END,
    changed = excluded.changed, expires = excluded.expires,
    takeovers = CASE found.state WHEN 'released' THEN 0 ELSE found.takeovers + 1 END,
    note = '', status = NULL, body = NULL, fault = NULL
WHERE found.version = {VERSION} AND (found.state = 'released' OR found.token = $5::text AND (
    found.state IN ('unknown', 'lost', 'held') OR found.state = 'inflight' AND found.expires <= {_NOW}
))
RETURNING {_ROW}, {_SAFELY}
"""  # noqa: S608  (constants, and a name that was checked)

# key, token, payload, state, note, status, body, fault; and as above
_SETTLE = f"""
INSERT INTO {{table}} AS found
    (version, key, state, token, payload, claimed, changed, expires, takeovers, note, status, body, fault)
SELECT {VERSION}, $1, $4, $2, $3, now, now, now, 0, $5, $6::smallint, $7::bytea, $8 FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    state = excluded.state, token = excluded.token, payload = excluded.payload, changed = excluded.changed,
    note = excluded.note, status = excluded.status, body = excluded.body, fault = excluded.fault
WHERE found.version = {VERSION} AND found.state NOT IN ('approved', 'refused')
    AND (excluded.state IN ('approved', 'refused') OR found.token = excluded.token)
RETURNING {_ROW}, {_SAFELY}
"""  # noqa: S608  (as above)

_LOOK = f"SELECT {_ROW} FROM {{table}} WHERE key = $1"  # noqa: S608  (as above)
_SCAN = f"SELECT {_ROW} FROM {{table}} WHERE key > $1 ORDER BY key LIMIT {_PAGE}"  # noqa: S608  (as above)
_PURGE = f"""
WITH gone AS (
    DELETE FROM {{table}}
    WHERE version = {VERSION} AND state IN ('approved', 'refused', 'released')
        AND changed <= {_NOW} - $1::float8
    RETURNING 1
)
SELECT count(*) FROM gone
"""  # noqa: S608  (as above)


@frozen
class Statements:
    """All that the ledger ever says to PostgreSQL."""

    exists: str
    create: str
    claim: str
    settle: str
    look: str
    scan: str
    purge: str

    @classmethod
    def of(cls, table: str) -> "Statements":
        """For a table, whose name stands in them as it is."""
        texts = (_CREATE, _CLAIM, _SETTLE, _LOOK, _SCAN, _PURGE)
        return cls(f"SELECT to_regclass('{table}')", *(text.format(table=table) for text in texts))
