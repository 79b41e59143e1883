"""The moves of the ledger in PostgreSQL, one statement each, for a table of any name."""

from collections.abc import Mapping

from attrs import fields, frozen

from loanasync.ledger import lists
from loanasync.ledger.model import FORMAT, HISTORY, PERSON, Entry
from loanasync.ledger.transitions import RAN_OUT

# The server's clock, as it is at this moment: not as it was when a caller's transaction began.
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_CLOCK = f"(SELECT {_NOW} AS now) AS clock"
# Servers and users can be set up not to wait for the disk; a transaction that returns this waits for it.
_SAFELY = """
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


def _source(row: str = "") -> str:
    """The source of a row. Rows of format 1 have none: there, a decision without a response is a person's."""
    return f"""COALESCE({row}source, CASE
    WHEN {row}state = 'inflight' THEN ''
    WHEN {row}state IN ('approved', 'refused') AND {row}body IS NULL AND {row}fault IS NULL THEN '{PERSON}'
    ELSE 'service' END)"""


def _longer(state: str, changed: str, note: str) -> str:
    """The history of a row that leaves a state."""
    left = f"jsonb_build_array(jsonb_build_array({state}, {changed}, {note}, {_source('found.')}))"
    whole = f"found.history::jsonb || {left}"
    return f"jsonb_path_query_array({whole}, '$[last - {HISTORY - 1} to last]')::text"


_NAMES = ", ".join(f'"{each.name}"' for each in fields(Entry) if each.name != "source")
_ROW = f"{_NOW} AS now, format, {_NAMES}, {_source()} AS source"

_COLUMNS = """
    ADD COLUMN customer text NOT NULL DEFAULT '',
    ADD COLUMN "order" text NOT NULL DEFAULT '',
    ADD COLUMN scope text NOT NULL DEFAULT '',
    ADD COLUMN source text,
    ADD COLUMN history text NOT NULL DEFAULT '[]'
"""
_INDEXES = """
CREATE INDEX ON {table} (customer) WHERE customer <> '';
CREATE INDEX ON {table} ("order") WHERE "order" <> '';
"""
_LIST_INDEXES = "".join(f"CREATE INDEX ON {{table}} {index};\n" for index in lists.INDEXES)
_HAS_INDEX = """
EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass('{table}')
    AND pg_get_indexdef(indexrelid) LIKE '%(state, key)')
"""
# The names of a table's columns, NULL if there is no such table; and whether it has the indexes for lists.
_FORM = f"""
SELECT array_agg(attname::text), {_HAS_INDEX} FROM pg_attribute
WHERE attrelid = to_regclass('{{table}}') AND attnum > 0 AND NOT attisdropped
"""  # noqa: S608  (constants, and a name that was checked)
_EXISTS = "SELECT to_regclass('{table}') IS NOT NULL"
_CREATE = f"""
DO $$ BEGIN
CREATE TABLE {{table}} (
    key text COLLATE "C" PRIMARY KEY, format smallint NOT NULL,
    state text NOT NULL, token text NOT NULL, payload text NOT NULL,
    claimed float8 NOT NULL, changed float8 NOT NULL, expires float8 NOT NULL, takeovers integer NOT NULL,
    note text NOT NULL, status smallint, body bytea, fault text
);
ALTER TABLE {{table}} {_COLUMNS};
{_INDEXES}{_LIST_INDEXES}
END $$
"""
# For a table of this format that was made without these indexes. Those who write do not wait for long.
_INDEX = f"""
DO $$ BEGIN
PERFORM set_config('lock_timeout', '2s', true);
PERFORM pg_advisory_xact_lock(1279607879, hashtext('{{table}}'));
IF NOT {_HAS_INDEX} THEN
{_LIST_INDEXES}
END IF;
END $$
"""
# From format 1. Each statement of an older client names the column `version`, and fails from here on. Rows
# stay as they are until they change. One client migrates, and the others wait for it.
_MIGRATE = f"""
DO $$ BEGIN
PERFORM pg_advisory_xact_lock(1279607879, hashtext('{{table}}'));
ALTER TABLE {{table}} RENAME COLUMN version TO format;
ALTER TABLE {{table}} {_COLUMNS};
{_INDEXES}{_LIST_INDEXES}
END $$
"""

_TAKEN = "(CASE WHEN found.state = 'inflight' THEN 'unknown' ELSE found.state END)"
_TAKEN_AT = "(CASE WHEN found.state = 'inflight' THEN found.expires ELSE found.changed END)"
_TAKEN_FOR = f"(CASE WHEN found.state = 'inflight' THEN '{RAN_OUT}' ELSE found.note END)"
_HAS_SUBJECT = "(excluded.customer <> '' OR excluded.\"order\" <> '' OR excluded.scope <> '')"

# key, token, payload, lease, token to take over or NULL, customer, order, scope. No row comes back from who
# has no right to it.
_CLAIM = f"""
INSERT INTO {{table}} AS found
    (format, key, state, token, payload, claimed, changed, expires, takeovers, note, source,
    customer, "order", scope)
SELECT {FORMAT}, $1, 'inflight', $2, $3, now, now, now + $4::float8, 0, '', '', $6, $7, $8 FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    format = {FORMAT}, state = excluded.state, token = excluded.token, payload = excluded.payload,
    claimed = CASE found.state WHEN 'released' THEN excluded.claimed ELSE found.claimed END,
    changed = excluded.changed, expires = excluded.expires,
    takeovers = CASE found.state WHEN 'released' THEN 0 ELSE found.takeovers + 1 END,
    note = '', source = '',
    status = CASE WHEN found.state <> 'released' THEN found.status END,
    body = CASE WHEN found.state <> 'released' THEN found.body END,
    fault = CASE WHEN found.state <> 'released' THEN found.fault END,
    customer = CASE WHEN {_HAS_SUBJECT} THEN excluded.customer ELSE found.customer END,
    "order" = CASE WHEN {_HAS_SUBJECT} THEN excluded."order" ELSE found."order" END,
    scope = CASE WHEN {_HAS_SUBJECT} THEN excluded.scope ELSE found.scope END,
    history = {_longer(_TAKEN, _TAKEN_AT, _TAKEN_FOR)}
WHERE found.format <= {FORMAT} AND (found.state = 'released' AND found.token <> $2
    OR found.token = $5::text AND (found.state IN ('unknown', 'lost', 'held')
    OR found.state = 'inflight' AND found.expires <= {_NOW}
))
RETURNING {_ROW}, {_SAFELY}
"""  # noqa: S608  (constants, and a name that was checked)

# The last parameter is the token of the entry that the settlement corrects, or NULL.
_CORRECTS = f"""
(found.token = $10::text AND found.state IN ('approved', 'refused', 'released')
    AND {_source("found.")} <> 'service')
"""
# A settlement that is no decision and has no body keeps the response that the row has.
_KEEPS = """
(excluded.state IN ('unknown', 'lost', 'held') AND excluded.body IS NULL
    AND num_nonnulls(found.status, found.body, found.fault) > 0)
"""

# key, token, payload, state, note, status, body, fault, source, token to correct or NULL; and as above
_SETTLE = f"""
INSERT INTO {{table}} AS found
    (format, key, state, token, payload, claimed, changed, expires, takeovers, note, source,
    status, body, fault)
SELECT {FORMAT}, $1, $4, $2, $3, now, now, now, 0, $5, $9, $6::smallint, $7::bytea, $8 FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    format = {FORMAT}, state = excluded.state, token = excluded.token, payload = excluded.payload,
    changed = excluded.changed, note = excluded.note, source = excluded.source,
    status = CASE WHEN {_KEEPS} THEN found.status ELSE excluded.status END,
    body = CASE WHEN {_KEEPS} THEN found.body ELSE excluded.body END,
    fault = CASE WHEN {_KEEPS} THEN found.fault ELSE excluded.fault END,
    history = CASE WHEN found.state <> 'inflight' AND (found.state <> excluded.state OR {_CORRECTS})
        THEN {_longer("found.state", "found.changed", "found.note")} ELSE found.history END
WHERE found.format <= {FORMAT} AND ({_CORRECTS} OR found.state NOT IN ('approved', 'refused')
    AND (found.token = excluded.token
        OR excluded.state IN ('approved', 'refused') AND excluded.source = 'service'))
RETURNING {_ROW}, {_SAFELY}
"""  # noqa: S608  (as above)

_LOOK = f"SELECT {_ROW} FROM {{table}} WHERE key = $1"  # noqa: S608  (as above)
_PAGES = lists.queries(f"SELECT {_ROW} FROM {{table}}", "$1", "$2")  # noqa: S608  (constants)
# customer, order; one of them is not empty. The constant conditions let the planner use the indexes.
_BY = {
    "customer": "customer = $1 AND customer <> '' AND $2::text = ''",
    "order": "\"order\" = $2 AND \"order\" <> '' AND $1::text = ''",
    "both": "customer = $1 AND customer <> '' AND \"order\" = $2 AND \"order\" <> ''",
}
_FIND = f"SELECT {_ROW} FROM {{table}} WHERE " + " OR ".join(f"({each})" for each in _BY.values())  # noqa: S608  (constants)
_PURGE = f"""
WITH gone AS (
    DELETE FROM {{table}}
    WHERE format <= {FORMAT} AND state IN ('approved', 'refused', 'released')
        AND changed <= {_NOW} - $1::float8
    RETURNING 1
)
SELECT count(*) FROM gone
"""  # noqa: S608  (as above)


@frozen
class Statements:
    """All that the ledger ever says to PostgreSQL."""

    table: str
    pages: Mapping[str, str]
    exists: str
    form: str
    create: str
    migrate: str
    index: str
    claim: str
    settle: str
    look: str
    find: str
    purge: str

    @classmethod
    def of(cls, table: str) -> "Statements":
        """For a table, whose name stands in them as it is."""
        texts = (_EXISTS, _FORM, _CREATE, _MIGRATE, _INDEX, _CLAIM, _SETTLE, _LOOK, _FIND, _PURGE)
        pages = {part: text.format(table=table) for part, text in _PAGES.items()}
        return cls(table, pages, *(text.format(table=table) for text in texts))
