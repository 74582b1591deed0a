// A filter for tests in C, by the proxy-wasm ABI itself: it calls the server of gRPC's tests of interoperability that
// the header X-Server names, and passes the outcome on in X-Grpc.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT(name) __attribute__((import_module("env"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

IMPORT(proxy_log) uint32_t proxy_log(uint32_t level, const char *text, size_t size);
IMPORT(proxy_get_header_map_value)
uint32_t proxy_get_header_map_value(uint32_t map, const char *name, size_t name_size, char **value, size_t *size);
IMPORT(proxy_replace_header_map_value)
uint32_t proxy_replace_header_map_value(uint32_t map, const char *name, size_t name_size, const char *value, size_t size);
IMPORT(proxy_set_effective_context) uint32_t proxy_set_effective_context(uint32_t context);
IMPORT(proxy_continue_stream) uint32_t proxy_continue_stream(uint32_t direction);
IMPORT(proxy_grpc_call)
uint32_t proxy_grpc_call(const char *upstream, size_t upstream_size, const char *service, size_t service_size,
                         const char *method, size_t method_size, const char *metadata, size_t metadata_size,
                         const char *message, size_t message_size, uint32_t timeout, uint32_t *call);
IMPORT(proxy_grpc_stream)
uint32_t proxy_grpc_stream(const char *upstream, size_t upstream_size, const char *service, size_t service_size,
                           const char *method, size_t method_size, const char *metadata, size_t metadata_size,
                           uint32_t *call);
IMPORT(proxy_grpc_send) uint32_t proxy_grpc_send(uint32_t call, const char *message, size_t size, uint32_t ends);

#define SERVICE "grpc.testing.TestService"
#define TEXT(text) text, sizeof(text) - 1

enum { REQUEST_HEADERS, INITIAL_METADATA = 4 };

// The request that waits, or 0, and what its call has brought so far.
static uint32_t waiting, plugin;
static char seen[200];

EXPORT(proxy_abi_version_0_2_1) void version(void) {}
EXPORT(proxy_on_memory_allocate) void *allocate(size_t size) { return malloc(size); }

EXPORT(proxy_on_context_create) void create(uint32_t context, uint32_t parent) {
  if (parent == 0) plugin = context;
}

static void note(const char *text, uint32_t number) {
  size_t size = strlen(seen);
  snprintf(seen + size, sizeof(seen) - size, "%s %u;", text, (unsigned)number);
}

EXPORT(proxy_on_request_headers) uint32_t request(uint32_t context, uint32_t count, uint32_t is_end) {
  char *path, *server;
  size_t size, server_size;
  uint32_t call;
  if (proxy_get_header_map_value(REQUEST_HEADERS, TEXT(":path"), &path, &size) ||
      proxy_get_header_map_value(REQUEST_HEADERS, TEXT("x-server"), &server, &server_size))
    return 0;
  seen[0] = 0;
  waiting = context;
  // Each asks for answers of five or three bytes.
  const char small[] = {0x10, 5}, parts[] = {0x12, 2, 0x08, 3, 0x12, 2, 0x08, 3};
  if (memmem(path, size, TEXT("call"))) {
    return !proxy_grpc_call(server, server_size, TEXT(SERVICE), TEXT("UnaryCall"), 0, 0, small, 2, 5000, &call);
  }
  if (memmem(path, size, TEXT("missing"))) {
    return !proxy_grpc_call(server, server_size, TEXT(SERVICE), TEXT("UnimplementedCall"), 0, 0, 0, 0, 5000, &call);
  }
  int beside = !!memmem(path, size, TEXT("beside"));
  if (beside) {
    proxy_set_effective_context(plugin);
    waiting = 0;
  }
  if (proxy_grpc_stream(server, server_size, TEXT(SERVICE), TEXT("FullDuplexCall"), 0, 0, &call)) return 0;
  proxy_grpc_send(call, parts, sizeof(parts), 0);
  proxy_grpc_send(call, parts, sizeof(parts), 1);
  return !beside;
}

static void finish(void) {
  proxy_log(3, seen, strlen(seen));
  if (waiting && !proxy_set_effective_context(waiting)) {
    proxy_replace_header_map_value(REQUEST_HEADERS, TEXT("X-Grpc"), seen, strlen(seen));
    proxy_continue_stream(0);
  }
}

static uint32_t is_stream;

EXPORT(proxy_on_grpc_receive_initial_metadata) void head(uint32_t context, uint32_t call, uint32_t count) {
  char *kind;
  size_t size;
  is_stream = call;
  note("head", !proxy_get_header_map_value(INITIAL_METADATA, TEXT("content-type"), &kind, &size));
}

EXPORT(proxy_on_grpc_receive) void receive(uint32_t context, uint32_t call, uint32_t size) {
  note("message", size);
  if (call != is_stream) finish();
}

EXPORT(proxy_on_grpc_receive_trailing_metadata) void trailers(uint32_t context, uint32_t call, uint32_t count) {
  note("trailers", count > 0);
}

EXPORT(proxy_on_grpc_close) void closed(uint32_t context, uint32_t call, uint32_t status) {
  note("status", status);
  finish();
}
