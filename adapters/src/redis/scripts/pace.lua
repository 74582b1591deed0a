    local state_key  = KEYS[1]
    local rate       = tonumber(ARGV[1])
    local burst      = tonumber(ARGV[2])
    local now        = tonumber(ARGV[3])
    local ttl        = tonumber(ARGV[4])

    local state = redis.call('hmget', state_key, 'excess', 'last')
    local excess_raw = state[1]
    local last_raw   = state[2]

    local excess
    if excess_raw and last_raw then
        -- state exists: apply leaky-bucket decay then add one request-unit (1000)
        local elapsed = now - tonumber(last_raw)
        excess = math.max(tonumber(excess_raw) - rate * math.abs(elapsed) / 1000 + 1000, 0)

        if excess > burst then
            return {0, tostring(excess)}
        end
    else
        -- no prior state: mirror the original behaviour, which skips the
        -- leaky-bucket formula and starts with excess = 0 so the very first
        -- request is always admitted
        excess = 0
    end

    redis.call('hset', state_key, 'excess', excess, 'last', now)
    redis.call('expire', state_key, ttl)
    return {1, tostring(excess)}
