    local cost = tonumber(ARGV[1])
    local limit = tonumber(ARGV[2])
    local window_size = tonumber(ARGV[3])
    local remaining_time = tonumber(ARGV[4])
    local expiry = ARGV[5]
    local last = tonumber(ARGV[6] or redis.call('get', KEYS[2]) or 0)
    if last > limit then
        last = limit
    end

    local cur_ttl = redis.call('pttl', KEYS[1])
    local cur = 0
    if cur_ttl >= 0 then
        cur = tonumber(redis.call('get', KEYS[1]) or 0)
    end

    local estimated = last / window_size * remaining_time + cur
    if cur >= limit or estimated >= limit then
        return {0, cur, last}
    end

    local new
    if cur_ttl < 0 then
        redis.call('set', KEYS[1], cost, 'EX', expiry)
        new = cost
    else
        new = redis.call('incrby', KEYS[1], cost)
    end
    return {1, new, last}
