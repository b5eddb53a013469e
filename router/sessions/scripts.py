"""What is done in Redis, one script a step: of several routers one decides.

Redis keeps the time (its own, the same for all) and ends sessions itself. Sorted sets beside them
say how many there are and who makes room: by last use, by end, and those that are over.
"""

#: What there is of a pool beside its sessions, in the order of the scripts' keys.
BESIDE = ("used", "ends", "counts", "over", "era", "doubt")
#: Expired ids that one new session clears out of the sorted sets, and one look at them.
CLEARED, SWEPT = 100, 1000

# Every answer begins with the era: Redis has another one when it has lost its memory. Then, and for
# a while after an outage, an id that it does not know may be that of an open session, unless it is
# known to be over.
_BEGIN = """
local at = redis.call('TIME')
local now = tonumber(at[1]) + tonumber(at[2]) / 1000000
local key, used, ends, counts, over, eras, doubt = unpack(KEYS)
local id, ttl, sliding, longest = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local most = tonumber(ARGV[5])
local era = redis.call('GET', eras)
if not era then
  era = ARGV[7]
  redis.call('SET', eras, era)
end
local function believe(seconds)
  local wanted = math.ceil(seconds * 1000)
  if redis.call('PTTL', doubt) < wanted then redis.call('SET', doubt, '1', 'PX', wanted) end
end
if ARGV[6] ~= '' and ARGV[6] ~= era then believe(ttl) end
local function finish(one, how)
  redis.call('ZREM', ends, one)
  redis.call('ZREM', used, one)
  redis.call('ZADD', over, now, one)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', now - ttl)
  redis.call('ZREMRANGEBYRANK', over, 0, -most - 1)
  if how then redis.call('HINCRBY', counts, how, 1) end
end
local function sweep(limit)
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, limit)
  for _, one in ipairs(gone) do finish(one, 'expired') end
end
local worker, created, expires, own, call
if id ~= '' then
  worker, created, expires, own, call = unpack(
    redis.call('HMGET', key, 'worker', 'created', 'expires', 'own', 'call'))
  if worker and now >= tonumber(expires) then
    redis.call('DEL', key)
    worker = false
  end
  if not worker and redis.call('ZSCORE', ends, id) then finish(id, 'expired') end
end
local function told()
  return {era, worker, created, expires, own or '', call or '', string.format('%.6f', now)}
end
local function was_used()
  return tonumber(redis.call('ZSCORE', used, id) or '0') ~= tonumber(created)
end
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
if not worker then return nobody() end
local moved = math.min(now + ttl, tonumber(created) + longest)
if sliding and moved > tonumber(expires) then ending(moved) end
redis.call('ZADD', used, now, id)
return told()
"""
)
_BIND = (
    _BEGIN
    + """
local to, expected, clear, end_of_its_own = ARGV[8], ARGV[9], tonumber(ARGV[12]), ARGV[13]
local stem = string.sub(key, 1, -string.len(id) - 1)
if (worker or '') ~= expected then
  if worker then
    redis.call('ZADD', used, now, id) -- whoever is told of it goes there
    return told()
  end
  return {era}
end
if worker and ARGV[14] == '1' and was_used() then return told() end
if worker then
  worker, own = to, ARGV[10]
  redis.call('HSET', key, 'worker', worker, 'own', own)
  return told()
end
sweep(clear)
while redis.call('ZCARD', ends) >= most do
  local oldest = redis.call('ZRANGE', used, 0, 0)[1] or redis.call('ZRANGE', ends, 0, 0)[1]
  redis.call('DEL', stem .. oldest)
  finish(oldest, 'evicted')
end
worker, own, call, created = to, ARGV[10], ARGV[11], string.format('%.6f', now)
redis.call('HSET', key, 'worker', worker, 'own', own, 'call', call, 'created', created)
if end_of_its_own ~= '' then
  ending(tonumber(end_of_its_own))
else
  ending(now + math.min(ttl, longest))
end
redis.call('ZADD', used, created, id)
redis.call('ZREM', over, id)
return told()
"""
)
_CLOSE = (
    _BEGIN
    + """
local said = worker and told() or nobody()
if worker and ARGV[8] ~= '' and (tonumber(ARGV[8]) ~= tonumber(created) or was_used()) then
  return {era}
end
if #said > 1 then
  redis.call('DEL', key)
  finish(id)
end
return said
"""
)
_DOUBT = _BEGIN + "believe(tonumber(ARGV[8])) return {era}"
_LOOK = (
    _BEGIN
    + """
sweep(tonumber(ARGV[8]))
local function counted(word) return tonumber(redis.call('HGET', counts, word) or '0') end
local left = redis.call('ZCOUNT', ends, '-inf', now)
return {era, redis.call('ZCARD', ends) - left, counted('expired') + left, counted('evicted')}
"""
)
_LIST = (
    _BEGIN
    + """
sweep(-1)
local found = {era}
for _, one in ipairs(redis.call('ZRANGE', used, 0, tonumber(ARGV[8]) - 1)) do
  local said = redis.call('HMGET', key .. one, 'worker', 'created', 'expires', 'own', 'call')
  local last = redis.call('ZSCORE', used, one)
  if said[1] then
    found[#found + 1] = {one, said[1], said[2], said[3], said[4] or '', said[5] or '', last}
  end
end
return found
"""
)
SCRIPTS = {
    "use": _USE,
    "bind": _BIND,
    "close": _CLOSE,
    "doubt": _DOUBT,
    "look": _LOOK,
    "list": _LIST,
}
