"""The moves of the ledger on Redis or Valkey as scripts, each of which runs there as one step."""

__all__ = ["CLAIM", "LOOK", "PAGE", "PURGE", "SETTLE"]

# An entry is a hash; the names of all are in a sorted set, to be gone through in order. Who finds no memory
# left is told so at the first command that writes, so a script has written all or nothing.

# By the server's clock, the same for all, whatever they believe what time it is. An entry is told as one
# text, since a client reads one faster than a dozen; and its body, which may be any bytes.
_BEGIN = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local stamp = string.format('%.6f', now)
local function told(entry)
  local fields = redis.call('HMGET', entry, 'version', 'state', 'token', 'payload', 'claimed', 'changed',
    'expires', 'takeovers', 'note', 'status', 'fault')
  return {cjson.encode({stamp, unpack(fields)}), redis.call('HGET', entry, 'body')}
end
"""

# KEYS: entry, names. ARGV: name, version, token, payload, lease, token to take over if any.
CLAIM = f"""{_BEGIN}
local version, state, token, claimed, expires, takeovers = unpack(redis.call(
  'HMGET', KEYS[1], 'version', 'state', 'token', 'claimed', 'expires', 'takeovers'))
if version and version ~= ARGV[2] then
  return told(KEYS[1])
end
local won = not state or state == 'released'
if won then
  claimed, takeovers = stamp, 0
end
if state == 'inflight' and tonumber(expires) <= now then
  state = 'unknown'
end
if (state == 'unknown' or state == 'lost' or state == 'held') and token == ARGV[6] then
  won, takeovers = true, takeovers + 1
end
if won then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'state', 'inflight', 'token', ARGV[3], 'payload', ARGV[4],
    'claimed', claimed, 'changed', stamp, 'expires', string.format('%.6f', now + ARGV[5]),
    'takeovers', takeovers, 'note', '')
  redis.call('HDEL', KEYS[1], 'status', 'body', 'fault')
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
end
return told(KEYS[1])
"""

# KEYS: entry, names. ARGV: name, version, token, payload, state, note, and what else is there of
# status, body and fault, each after its name.
SETTLE = f"""{_BEGIN}
local version, state, token = unpack(redis.call('HMGET', KEYS[1], 'version', 'state', 'token'))
local decided = state == 'approved' or state == 'refused'
local decides = ARGV[5] == 'approved' or ARGV[5] == 'refused'
local is_ours = not version or version == ARGV[2]
if is_ours and not decided and (not state or decides or token == ARGV[3]) then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'state', ARGV[5], 'token', ARGV[3], 'payload', ARGV[4],
    'changed', stamp, 'note', ARGV[6])
  redis.call('HDEL', KEYS[1], 'status', 'body', 'fault')
  if #ARGV > 6 then
    redis.call('HSET', KEYS[1], unpack(ARGV, 7))
  end
  if not state then
    redis.call('HSET', KEYS[1], 'claimed', stamp, 'expires', stamp, 'takeovers', 0)
  end
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
end
return told(KEYS[1])
"""

# KEYS: entry.
LOOK = f"""{_BEGIN}
return told(KEYS[1])
"""

# KEYS: names. ARGV: what stands before an entry's name, after which name, how many.
PAGE = f"""{_BEGIN}
local page = {{}}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], '+', 'LIMIT', 0, ARGV[3])) do
  page[#page + 1] = {{name, told(ARGV[1] .. name)}}
end
return page
"""

# As PAGE, and the version and the age in seconds. Comes back with the last name that was looked at, and how
# many are gone.
PURGE = f"""{_BEGIN}
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local gone = 0
for _, name in ipairs(names) do
  local version, state, changed = unpack(redis.call('HMGET', ARGV[1] .. name, 'version', 'state', 'changed'))
  local ended = state == 'approved' or state == 'refused' or state == 'released'
  if version == ARGV[4] and ended and tonumber(changed) <= now - ARGV[5] then
    redis.call('DEL', ARGV[1] .. name)
    redis.call('ZREM', KEYS[1], name)
    gone = gone + 1
  end
end
return {{names[#names] or false, gone}}
"""
