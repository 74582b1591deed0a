-- Used by wrk in every scenario. Arguments: how many paths to walk over, and the API key (may be
-- empty). One path keeps wrk's own fixed request; more of them are asked for in a fixed stride, so
-- that neighbours in the routing table do not follow each other.

local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local paths = tonumber(args[1]) or 1
  if args[2] and args[2] ~= "" then
    wrk.headers["apikey"] = args[2]
  end
  if paths > 1 then
    local requests = {}
    for index = 0, paths - 1 do
      requests[index] = wrk.format("GET", "/hello/" .. index)
    end
    local at = number * 131
    request = function()
      at = (at + 7919) % paths
      return requests[at]
    end
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'BENCH {"requests":%d,"seconds":%.6f,"bytes":%d,"status":%d,"socket":%d,' ..
    '"mean":%.1f,"p50":%.1f,"p90":%.1f,"p99":%.1f,"p999":%.1f,"max":%.1f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99),
    latency:percentile(99.9), latency.max))
end
