    local key = KEYS[1]
    local limit = tonumber(ARGV[1])
    local ttl = tonumber(ARGV[2])
    local now = tonumber(ARGV[3])
    local req_id = ARGV[4]

    redis.call('ZREMRANGEBYSCORE', key, 0, now)

    local count = redis.call('ZCARD', key)
    if count >= limit then
        return {0, count}
    end

    redis.call('ZADD', key, now + ttl, req_id)
    redis.call('EXPIRE', key, ttl)
    return {1, count + 1}
