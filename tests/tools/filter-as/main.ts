// A filter for tests in AssemblyScript, by the proxy-wasm ABI itself: it greets with its settings, a property and a
// count that all workers share. Of streams, it waits for whole lines of the client and makes them large.

@external("env", "proxy_get_buffer_bytes")
declare function getBuffer(kind: u32, start: u32, most: u32, data: usize, size: usize): u32;
@external("env", "proxy_get_property")
declare function getProperty(path: usize, pathSize: u32, data: usize, size: usize): u32;
@external("env", "proxy_get_shared_data")
declare function getShared(key: usize, keySize: u32, data: usize, size: usize, cas: usize): u32;
@external("env", "proxy_set_shared_data")
declare function setShared(key: usize, keySize: u32, data: usize, size: u32, cas: u32): u32;
@external("env", "proxy_replace_header_map_value")
declare function setHeader(map: u32, name: usize, nameSize: u32, value: usize, size: u32): u32;
@external("env", "proxy_send_local_response")
declare function respond(status: u32, details: usize, detailsSize: u32, body: usize, bodySize: u32, headers: usize,
  headersSize: u32, grpc: i32): u32;

@external("env", "proxy_set_buffer_bytes")
declare function setBuffer(kind: u32, start: u32, most: u32, data: usize, size: u32): u32;
@external("env", "proxy_close_stream")
declare function closeStream(direction: u32): u32;
@external("env", "proxy_log")
declare function hostLog(level: u32, data: usize, size: u32): u32;

const DOWNSTREAM: u32 = 2;
const UPSTREAM: u32 = 3;
const CONFIGURATION: u32 = 7;
const RESPONSE_HEADERS: u32 = 2;
const CAS_MISMATCH: u32 = 8;

/// Where the host writes a pointer, a length and a number.
const RESULT = memory.data(12);

let greeting = "";

export function proxy_abi_version_0_2_1(): void {}

export function proxy_on_memory_allocate(size: usize): usize {
  return heap.alloc(size);
}

/// Reads what the host has given, and frees it.
function given(): string {
  const data = load<usize>(RESULT), size = load<u32>(RESULT, 4);
  if (size == 0) return "";
  const text = String.UTF8.decodeUnsafe(data, size);
  heap.free(data);
  return text;
}

function property(path: string): string {
  const name = String.UTF8.encode(path);
  const status = getProperty(changetype<usize>(name), name.byteLength, RESULT, RESULT + 4);
  return status == 0 ? given() : "";
}

/// Counts one more, beside the other workers.
function counted(): i32 {
  const key = String.UTF8.encode("count");
  let count = 0, status = CAS_MISMATCH;
  while (status == CAS_MISMATCH) {
    count = 1;
    store<u32>(RESULT, 0, 8);
    if (getShared(changetype<usize>(key), key.byteLength, RESULT, RESULT + 4, RESULT + 8) == 0) {
      count += I32.parseInt(given());
    }
    const value = String.UTF8.encode(count.toString());
    status = setShared(changetype<usize>(key), key.byteLength, changetype<usize>(value), value.byteLength,
      load<u32>(RESULT, 8));
  }
  return count;
}

export function proxy_on_configure(context: u32, size: u32): u32 {
  if (getBuffer(CONFIGURATION, 0, size, RESULT, RESULT + 4) == 0) greeting = given();
  return greeting == "" ? 0 : 1;
}

export function proxy_on_request_headers(context: u32, count: u32, end: u32): u32 {
  if (!property("request\0path").endsWith("/greeting")) return 0;
  const body = String.UTF8.encode(greeting + " " + property("request\0method") + " " + counted().toString());
  respond(200, 0, 0, changetype<usize>(body), body.byteLength, 0, 0, -1);
  return 1;
}

export function proxy_on_response_headers(context: u32, count: u32, end: u32): u32 {
  const name = String.UTF8.encode("X-Greeting"), value = String.UTF8.encode(greeting);
  setHeader(RESPONSE_HEADERS, changetype<usize>(name), name.byteLength, changetype<usize>(value), value.byteLength);
  return 0;
}

function log(text: string): void {
  const line = String.UTF8.encode(text);
  hostLog(3, changetype<usize>(line), line.byteLength);
}

export function proxy_on_new_connection(context: u32): u32 {
  log("connected " + property("source\0address"));
  if (greeting == "closed") closeStream(DOWNSTREAM);
  return 0;
}

function bytes(kind: u32): string {
  return getBuffer(kind, 0, u32.MAX_VALUE, RESULT, RESULT + 4) == 0 ? given() : "";
}

function replace(kind: u32, text: string): void {
  const value = String.UTF8.encode(text);
  setBuffer(kind, 0, u32.MAX_VALUE, changetype<usize>(value), value.byteLength);
}

export function proxy_on_downstream_data(context: u32, size: u32, end: u32): u32 {
  const text = bytes(DOWNSTREAM);
  if (text.includes("quit")) closeStream(DOWNSTREAM);
  if (end == 0 && !text.endsWith("\n")) return 1;
  replace(DOWNSTREAM, text.toUpperCase());
  return 0;
}

export function proxy_on_upstream_data(context: u32, size: u32, end: u32): u32 {
  if (size > 0) replace(UPSTREAM, greeting + " " + bytes(UPSTREAM));
  return 0;
}

export function proxy_on_downstream_connection_close(context: u32, by: u32): void {
  log("client closed " + by.toString());
}

export function proxy_on_upstream_connection_close(context: u32, by: u32): void {
  log("upstream closed " + by.toString());
}
