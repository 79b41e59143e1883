"""The moves of the ledger on Redis or Valkey as scripts, each of which runs there as one step."""

from loanasync.ledger.lists import WITHOUT_REDIRECT
from loanasync.ledger.model import HISTORY, PERSON
from loanasync.ledger.transitions import RAN_OUT

# An entry is a hash. The names of all entries are in a sorted set, the index, so that they can be read in
# pages; the names of the entries in each state are in one more, and so are those of the approvals that may
# lack a redirect. The names of a customer's entries and of an order's entries are in sets.
#
# A server without memory refuses the first command that writes, if the command can need memory (HDEL cannot):
# so such a command comes first, and a script writes all or nothing.
#
# In format 1 the index was called "entries", and entries carried the version "1". Now "entries" is a string
# that names the format: so each script of an older client that changes or lists entries fails (WRONGTYPE) and
# nothing is sent. Entries carry a version that an older client cannot read as a number.
#
# The first clients of format 2 kept no sets of states. A client that does not keep them must not change
# entries: so the string that names the format is another one.
VERSION = "2.0"
LISTED, UNLISTED = "2.1", "2.0"  # the format of the index, with and without sets of states
OLD, LATER, FOREIGN = "old", "later", "foreign"  # what a script returns instead of entries

# By the server's clock, the same for all, whatever they believe what time it is. An entry is told as one
# text, since a client reads one faster than a dozen; and its body, which may be any bytes.
_BEGIN = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local stamp = string.format('%.6f', now)
local function told(entry)
  local fields = redis.call('HMGET', entry, 'version', 'state', 'token', 'payload', 'claimed', 'changed',
    'expires', 'takeovers', 'note', 'status', 'fault', 'customer', 'order', 'scope', 'source', 'history')
  return {{cjson.encode({{stamp, unpack(fields)}}), redis.call('HGET', entry, 'body')}}
end
-- Moves a name from the sets of one state to those of another.
local function list(sets, name, entry, from, to)
  if from and from ~= to then
    redis.call('ZREM', sets .. 'state:' .. from, name)
  end
  redis.call('ZADD', sets .. 'state:' .. to, 0, name)
  local note = redis.call('HGET', entry, 'note')
  if to == 'approved' and (note and note ~= '' or redis.call('HEXISTS', entry, 'body') == 0) then
    redis.call('ZADD', sets .. 'state:{WITHOUT_REDIRECT}', 0, name)
  elseif from == 'approved' then
    redis.call('ZREM', sets .. 'state:{WITHOUT_REDIRECT}', name)
  end
end
local function known(version)
  return version == '1' or version == '{VERSION}'
end
-- The source of an entry; format 1 stored none, and a decision without a response was a person's.
local function source_of(entry, state)
  local source = redis.call('HGET', entry, 'source')
  if source then
    return source
  end
  if state == 'inflight' then
    return ''
  end
  if (state == 'approved' or state == 'refused') and redis.call('HEXISTS', entry, 'body') == 0
    and redis.call('HEXISTS', entry, 'fault') == 0 then
    return '{PERSON}'
  end
  return 'service'
end
-- Adds the state that an entry leaves to its history.
local function leave(entry, state, changed, note, source)
  local text = redis.call('HGET', entry, 'history')
  local history = text and cjson.decode(text) or {{}}
  history[#history + 1] = {{state, changed, note or '', source}}
  while #history > {HISTORY} do
    table.remove(history, 1)
  end
  redis.call('HSET', entry, 'history', cjson.encode(history))
end
"""

# KEYS: names in format 1, index. Ends the script where an older or a later client has the index, and where
# the sets of states do not have all names yet.
_FORMAT = f"""
local format = redis.pcall('GET', KEYS[1])
if type(format) == 'table' or format == '{UNLISTED}' then
  return '{OLD}'
end
if format and format ~= '{LISTED}' then
  return '{LATER}'
end
if redis.call('EXISTS', KEYS[2] .. ':unlisted') == 1 then
  return '{OLD}'
end
"""
_MARK = f"""
if not format then
  redis.call('SET', KEYS[1], '{LISTED}')
end
"""

# KEYS: names in format 1, index. ARGV: prefix of an entry, number of entries, prefix of the sets. Brings that
# many entries to this format. With the last of them it closes the index to older clients, or with the first
# if these are of format 2. Returns the number of entries that it changed; the caller repeats it until that is
# 0. Many small scripts, since other clients wait for each. A set of something else is left as it is.
# The version is changed at once and not with the next change of an entry: otherwise an older client that
# probes could take over an UNKNOWN entry, fail at the index, and release the entry.
MIGRATE = f"""{_BEGIN}
local kind, left = redis.call('TYPE', KEYS[1]).ok, KEYS[2] .. ':unlisted'
if kind == 'zset' then
  left = KEYS[1]
elseif kind == 'string' and redis.call('GET', KEYS[1]) == '{UNLISTED}' then
  redis.call('SET', KEYS[1], '{LISTED}')
  if redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('RENAME', KEYS[2], left)
  end
elseif kind ~= 'string' and kind ~= 'none' then
  return '{FOREIGN}'
end
local names, entries = redis.call('ZRANGE', left, 0, ARGV[2] - 1), 0
for _, name in ipairs(names) do
  entries = entries + redis.call('HEXISTS', ARGV[1] .. name, 'version')
end
if kind == 'zset' and entries == 0 then
  return '{FOREIGN}'
end
for _, name in ipairs(names) do
  local entry = ARGV[1] .. name
  local version, state = unpack(redis.call('HMGET', entry, 'version', 'state'))
  if version == '1' then
    redis.call('HSET', entry, 'source', source_of(entry, state), 'version', '{VERSION}')
  end
  redis.call('ZADD', KEYS[2], 0, name)
  if state then
    list(ARGV[3], name, entry, nil, state)
  end
  redis.call('ZREM', left, name)
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], '{LISTED}')
end
return #names
"""

# KEYS: names in format 1, index, entry. ARGV: name, prefix of the sets, token, payload, lease, token to take
# over or nothing, customer, order, scope.
CLAIM = f"""{_BEGIN}{_FORMAT}
local entry, sets = KEYS[3], ARGV[2]
local version, state, token, claimed, changed, expires, takeovers, note, customer, order = unpack(redis.call(
  'HMGET', entry, 'version', 'state', 'token', 'claimed', 'changed', 'expires', 'takeovers', 'note',
  'customer', 'order'))
if version and not known(version) then
  return told(entry)
end
local fresh, stored = not state or state == 'released' and token ~= ARGV[3], state
local source = state and source_of(entry, state)
if state == 'inflight' and tonumber(expires) <= now then
  state, changed, note = 'unknown', expires, '{RAN_OUT}'
end
local over = (state == 'unknown' or state == 'lost' or state == 'held') and ARGV[6] ~= '' and token == ARGV[6]
if not (fresh or over) then
  if version == '1' then
    redis.call('ZADD', KEYS[2], 0, ARGV[1])
    list(sets, ARGV[1], entry, nil, stored)
  end
  return told(entry)
end
{_MARK}
if state then
  leave(entry, state, changed, note, source)
end
if fresh then
  claimed, takeovers = stamp, 0
else
  takeovers = takeovers + 1
end
redis.call('HSET', entry, 'version', '{VERSION}', 'state', 'inflight', 'token', ARGV[3], 'payload', ARGV[4],
  'claimed', claimed, 'changed', stamp, 'expires', string.format('%.6f', now + ARGV[5]),
  'takeovers', takeovers, 'note', '', 'source', '')
if fresh then
  redis.call('HDEL', entry, 'status', 'body', 'fault')
end
if ARGV[7] ~= '' or ARGV[8] ~= '' or ARGV[9] ~= '' then
  if customer and customer ~= '' then
    redis.call('SREM', sets .. 'customer:' .. customer, ARGV[1])
  end
  if order and order ~= '' then
    redis.call('SREM', sets .. 'order:' .. order, ARGV[1])
  end
  redis.call('HSET', entry, 'customer', ARGV[7], 'order', ARGV[8], 'scope', ARGV[9])
  if ARGV[7] ~= '' then
    redis.call('SADD', sets .. 'customer:' .. ARGV[7], ARGV[1])
  end
  if ARGV[8] ~= '' then
    redis.call('SADD', sets .. 'order:' .. ARGV[8], ARGV[1])
  end
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
list(sets, ARGV[1], entry, stored, 'inflight')
return told(entry)
"""

# KEYS: the same as for CLAIM. ARGV: name, prefix of the sets, token, payload, state, note, source, token of
# the entry to correct or nothing; then status, body and fault if there are any, each after its name.
SETTLE = f"""{_BEGIN}{_FORMAT}
local entry, becomes = KEYS[3], ARGV[5]
local version, state, token, changed, note = unpack(redis.call(
  'HMGET', entry, 'version', 'state', 'token', 'changed', 'note'))
if version and not known(version) then
  return told(entry)
end
local source = state and source_of(entry, state)
local decided = state == 'approved' or state == 'refused'
local decides = (becomes == 'approved' or becomes == 'refused') and ARGV[7] == 'service'
local corrects = (decided or state == 'released') and source ~= 'service'
  and ARGV[8] ~= '' and token == ARGV[8]
if state and not corrects and (decided or not (decides or token == ARGV[3])) then
  if version == '1' then
    redis.call('ZADD', KEYS[2], 0, ARGV[1])
    list(ARGV[2], ARGV[1], entry, nil, state)
  end
  return told(entry)
end
{_MARK}
if state and state ~= 'inflight' and (corrects or state ~= becomes) then
  leave(entry, state, changed, note, source)
end
local has_body, has_response = false, false
for number = 9, #ARGV, 2 do
  has_body = has_body or ARGV[number] == 'body'
end
for _, name in ipairs({{'status', 'body', 'fault'}}) do
  has_response = has_response or redis.call('HEXISTS', entry, name) == 1
end
local unsettled = becomes == 'unknown' or becomes == 'lost' or becomes == 'held'
redis.call('HSET', entry, 'version', '{VERSION}', 'state', becomes, 'token', ARGV[3], 'payload', ARGV[4],
  'changed', stamp, 'note', ARGV[6], 'source', ARGV[7])
if not (unsettled and has_response and not has_body) then
  redis.call('HDEL', entry, 'status', 'body', 'fault')
  if #ARGV > 8 then
    redis.call('HSET', entry, unpack(ARGV, 9))
  end
end
if not state then
  redis.call('HSET', entry, 'claimed', stamp, 'expires', stamp, 'takeovers', 0)
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
list(ARGV[2], ARGV[1], entry, state, becomes)
return told(entry)
"""

# KEYS: names in format 1.
EXISTS = "return redis.call('EXISTS', KEYS[1])"

# KEYS: entry.
LOOK = f"""{_BEGIN}
return told(KEYS[1])
"""

# KEYS: names in format 1, index, the index or the set to read. ARGV: prefix of an entry, limit at which the
# page begins, its length.
PAGE = f"""{_BEGIN}{_FORMAT}
local page = {{}}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], '+', 'LIMIT', 0, ARGV[3])) do
  page[#page + 1] = {{name, told(ARGV[1] .. name)}}
end
return page
"""

# KEYS: names in format 1, index, one or two sets of names. ARGV: prefix of an entry.
FIND = f"""{_BEGIN}{_FORMAT}
local found = {{}}
for _, name in ipairs(redis.call('SINTER', unpack(KEYS, 3))) do
  found[#found + 1] = {{name, told(ARGV[1] .. name)}}
end
return found
"""

# KEYS: names in format 1, index. ARGV: the same as for PAGE, then the prefix of the sets and the age in
# seconds. Returns the last name of the page, and the number of entries that it deleted.
PURGE = f"""{_BEGIN}{_FORMAT}
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local gone = 0
for _, name in ipairs(names) do
  local version, state, changed, customer, order = unpack(redis.call('HMGET', ARGV[1] .. name,
    'version', 'state', 'changed', 'customer', 'order'))
  local ended = state == 'approved' or state == 'refused' or state == 'released'
  if known(version) and ended and tonumber(changed) <= now - ARGV[5] then
    redis.call('DEL', ARGV[1] .. name)
    redis.call('ZREM', KEYS[2], name)
    redis.call('ZREM', ARGV[4] .. 'state:' .. state, name)
    redis.call('ZREM', ARGV[4] .. 'state:{WITHOUT_REDIRECT}', name)
    if customer and customer ~= '' then
      redis.call('SREM', ARGV[4] .. 'customer:' .. customer, name)
    end
    if order and order ~= '' then
      redis.call('SREM', ARGV[4] .. 'order:' .. order, name)
    end
    gone = gone + 1
  end
end
return {{names[#names] or false, gone}}
"""
