"""The Redis scripts, one per step, so that each step is atomic across routers.

Redis's own clock counts, so all routers agree on the time, and Redis expires the sessions itself.
Sorted sets beside the sessions give their number and which one to evict: ids by last use, those of
each owner by last use, by end, and those that are over.
"""

#: Keys of a pool besides its sessions, in the order in which the scripts receive them.
BESIDE = ("used", "ends", "counts", "over", "era", "doubt", "owners", "owned", "line:")
#: Most ids removed from the sorted sets in one script: by a new session (of expired sessions, and
#: of evicted ones), and by one look. Limited because Redis serves nobody else while a script runs.
MAX_CLEARED, MAX_SWEPT = 100, 1000
#: Separates the fields of an answer: reading one string takes a third of the time of reading eight.
APART = "\n"

# Every answer begins with the era, a value that changes when Redis loses its data. After that, and
# for a while after an outage, an unknown id may be that of an open session, unless it is known to
# be over.
_BEGIN = """
local at = redis.call('TIME')
local now = tonumber(at[1]) + tonumber(at[2]) / 1000000
local key, used, ends, counts, over, eras, doubt, owners, owned, line = unpack(KEYS)
local id, ttl, sliding, longest = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local most = tonumber(ARGV[5])
local era = redis.call('GET', eras)
if not era then
  era = at[1] .. '.' .. at[2] -- told apart from all before
  redis.call('SET', eras, era)
end
local function believe(seconds)
  local wanted = math.ceil(seconds * 1000)
  if redis.call('PTTL', doubt) < wanted then redis.call('SET', doubt, '1', 'PX', wanted) end
end
if ARGV[6] ~= '' and ARGV[6] ~= era then believe(ttl) end
local function disown(one)
  local whose = redis.call('HGET', owners, one)
  if not whose then return end
  redis.call('HDEL', owners, one)
  if redis.call('ZREM', line .. whose, one) == 1
      and redis.call('HINCRBY', owned, whose, -1) <= 0 then
    redis.call('HDEL', owned, whose)
  end
end
local function take(one, whose)
  if redis.call('ZADD', line .. whose, now, one) == 1 then
    redis.call('HINCRBY', owned, whose, 1)
  end
  redis.call('HSET', owners, one, whose)
end
local function finish(one, how)
  redis.call('ZREM', ends, one)
  redis.call('ZREM', used, one)
  disown(one)
  redis.call('ZADD', over, now, one)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', now - ttl)
  redis.call('ZREMRANGEBYRANK', over, 0, -most - 1)
  if how then redis.call('HINCRBY', counts, how, 1) end
end
local function sweep(limit)
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, limit)
  for _, one in ipairs(gone) do finish(one, 'expired') end
end
local function say(words) return table.concat(words, '\\n') end
local function written(seconds) return string.format('%.6f', seconds) end
-- What others have written there, and is no session, is cleared away: it would fail at every use.
local function is_time(text)
  return text and string.find(text, '^%d+%.?%d*$') and tonumber(text) < 2e11 -- some year that is
end
local function is_sound(said)
  local rest = (said[4] or '') .. (said[5] or '') .. (said[6] or '')
  local named = said[1] and string.find(said[1], '^[!-~]+$') and not string.find(rest, '%c')
  return named and is_time(said[2]) and is_time(said[3])
end
local function read(one)
  local said = redis.pcall('HMGET', one, 'worker', 'created', 'expires', 'own', 'call', 'fixed')
  if is_sound(said) and now < tonumber(said[3]) then return said end
  if said.err or said[1] then redis.call('DEL', one) end
  return {}
end
local worker, created, expires, own, call, fixed
if id ~= '' then
  worker, created, expires, own, call, fixed = unpack(read(key))
  if not worker and redis.call('ZSCORE', ends, id) then finish(id, 'expired') end
end
local function last_use() return redis.call('ZSCORE', used, id) or created end
local function use()
  redis.call('ZADD', used, written(now), id)
  local whose = redis.call('HGET', owners, id)
  if whose then redis.call('ZADD', line .. whose, 'XX', written(now), id) end
end
local function told(last)
  return {era, worker, created, expires, last, own or '', call or '', fixed or ''}
end
local function bound(done, last)
  local said = last and told(last) or {era}
  table.insert(said, 2, done)
  return say(said)
end
local function was_used_since(when) return tonumber(last_use()) ~= tonumber(when) end
local function nobody()
  local perhaps = redis.call('EXISTS', doubt) == 1 and not redis.call('ZSCORE', over, id)
  return perhaps and {era, ''} or {era}
end
local function ending(when)
  expires = string.format('%.3f', when)
  redis.call('HSET', key, 'expires', expires)
  redis.call('PEXPIREAT', key, math.ceil(when * 1000))
  redis.call('ZADD', ends, expires, id)
end
"""
_USE = (
    _BEGIN
    + """
if not worker then return say(nobody()) end
local moved = math.min(now + ttl, tonumber(created) + longest)
if sliding and fixed ~= '1' and moved > tonumber(expires) then ending(moved) end
use()
return say(told(written(now)))
"""
)
_FIND = _BEGIN + "return say(worker and told(last_use()) or nobody())"
_BIND = (
    _BEGIN
    + """
local to, expected, only_if_used, clear = ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local its_own, its_call, its_end, its_fixed = ARGV[11], ARGV[12], ARGV[13], ARGV[14]
local owner = ARGV[15]
local stem = string.sub(key, 1, -string.len(id) - 1)
if (worker or '') ~= expected then
  if not worker then return bound(0) end
  use() -- whoever is told of it goes there
  return bound(0, written(now))
end
if worker then
  if only_if_used ~= '' and was_used_since(only_if_used) then return bound(0, last_use()) end
  worker, own = to, its_own
  redis.call('HSET', key, 'worker', worker, 'own', own)
  return bound(1, last_use())
end
sweep(clear)
local function longest_line()
  local held = {[owner] = 1}
  local told = redis.call('HGETALL', owned)
  for place = 1, #told, 2 do
    held[told[place]] = (held[told[place]] or 0) + tonumber(told[place + 1])
  end
  local most_of_all = owner -- of equals the newcomer's
  for one, count in pairs(held) do
    if count > held[most_of_all] then most_of_all = one end
  end
  return line .. most_of_all
end
for _ = 1, math.min(clear, redis.call('ZCARD', ends) - most + 1) do
  local oldest = redis.call('ZRANGE', longest_line(), 0, 0)[1]
    or redis.call('ZRANGE', used, 0, 0)[1] or redis.call('ZRANGE', ends, 0, 0)[1]
  redis.call('DEL', stem .. oldest)
  finish(oldest, 'evicted')
end
worker, created, own, call, fixed = to, written(now), its_own, its_call, its_fixed
redis.call(
  'HSET', key, 'worker', worker, 'created', created, 'own', own, 'call', call, 'fixed', fixed)
ending(math.min(tonumber(its_end) or now + ttl, now + longest))
take(id, owner)
use()
redis.call('ZREM', over, id)
return bound(1, created)
"""
)
_CLOSE = (
    _BEGIN
    + """
local said = worker and told(last_use()) or nobody()
local begun = tonumber(ARGV[7])
if worker and begun and (begun ~= tonumber(created) or was_used_since(created)) then
  return era
end
if #said > 1 then
  redis.call('DEL', key)
  finish(id)
end
return say(said)
"""
)
_DOUBT = _BEGIN + "believe(tonumber(ARGV[7])) return era"
_LOOK = (
    _BEGIN
    + """
sweep(tonumber(ARGV[7]))
local function counted(word) return tonumber(redis.call('HGET', counts, word) or '0') end
local left = redis.call('ZCOUNT', ends, '-inf', now)
local open = redis.call('ZCARD', ends) - left
return say({era, open, counted('expired') + left, counted('evicted')})
"""
)
_LIST = (
    _BEGIN
    + """
sweep(tonumber(ARGV[8]))
local left = redis.call('ZCOUNT', ends, '-inf', now)
if left > 0 then return {era, tostring(left)} end
local found = {era, '0'}
for _, one in ipairs(redis.call('ZRANGE', used, 0, tonumber(ARGV[7]) - 1)) do
  local said = read(key .. one)
  if said[1] then
    local last = redis.call('ZSCORE', used, one)
    local its = {said[4] or '', said[5] or '', said[6] or ''}
    found[#found + 1] = say({one, said[1], said[2], said[3], last, unpack(its)})
  end
end
return found
"""
)
SCRIPTS = {
    "use": _USE,
    "find": _FIND,
    "bind": _BIND,
    "close": _CLOSE,
    "doubt": _DOUBT,
    "look": _LOOK,
    "list": _LIST,
}
