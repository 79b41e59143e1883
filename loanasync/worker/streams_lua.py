"""The steps of a queue in Redis or Valkey as scripts, each of which runs there as one step."""

# A server without memory refuses the first command that writes, if the command can need memory: so such a
# command comes first, and a script writes all or nothing.
_NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""
# KEYS: stream, other. ARGV: group, id. Ends the script if another worker has finished the message.
_IS_OURS = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
"""
_FINISHED = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""

# KEYS: stream, delayed messages. ARGV: group, id, message, seconds.
LATER = f"""{_NOW}{_IS_OURS}
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[3])
{_FINISHED}"""

# KEYS: stream, delayed messages. ARGV: number of messages. Puts the messages that are due into the stream.
DUE = f"""{_NOW}
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, message in ipairs(due) do
  redis.call('XADD', KEYS[1], '*', 'data', message)
  redis.call('ZREM', KEYS[2], message)
end
return #due
"""

# KEYS: stream, dead letters. ARGV: group, id, message, reason.
BURY = f"""{_IS_OURS}
redis.call('XADD', KEYS[2], '*', 'data', ARGV[3], 'reason', ARGV[4])
{_FINISHED}"""

# KEYS: stream, dead letters. ARGV: id of the dead letter.
REPLAY = """
local found = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])
if #found == 0 then
  return 0
end
local fields = found[1][2]
for number = 1, #fields, 2 do
  if fields[number] == 'data' then
    redis.call('XADD', KEYS[1], '*', 'data', fields[number + 1])
  end
end
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
"""

# KEYS: stream. ARGV: group, name of a consumer, milliseconds. Deletes that consumer, and each consumer that
# has not called for so long; a consumer that has messages stays, since they would be lost with it.
LEAVE = """
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for number = 1, #fields, 2 do
    consumer[fields[number]] = fields[number + 1]
  end
  local ended = consumer.name == ARGV[2] or consumer.idle > tonumber(ARGV[3])
  if ended and consumer.pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
"""
