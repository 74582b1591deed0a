    local ttl = redis.call('pttl', KEYS[1])
    if ttl < 0 then
        redis.call('set', KEYS[1], ARGV[1], 'EX', ARGV[2])
        return tonumber(ARGV[1])
    end
    return redis.call('incrby', KEYS[1], ARGV[1])
