// A filter for tests, by the proxy-wasm ABI itself: no SDK.
package main

import (
	"strings"
	"unsafe"
)

//go:wasmimport env proxy_log
func hostLog(level uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func hostGetHeader(kind uint32, name unsafe.Pointer, nameSize uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_replace_header_map_value
func hostSetHeader(kind uint32, name unsafe.Pointer, nameSize uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func hostGetBytes(kind, start, most uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_buffer_bytes
func hostSetBytes(kind, start, most uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_set_property
func hostSetProperty(path unsafe.Pointer, pathSize uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_send_local_response
func hostRespond(status uint32, details unsafe.Pointer, detailsSize uint32, body unsafe.Pointer, bodySize uint32,
	headers unsafe.Pointer, headersSize uint32, grpc int32) uint32

//go:wasmimport env proxy_http_call
func hostCall(to unsafe.Pointer, toSize uint32, headers unsafe.Pointer, headersSize uint32, body unsafe.Pointer,
	bodySize uint32, trailers unsafe.Pointer, trailersSize uint32, timeout uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_set_effective_context
func hostEffective(context uint32) uint32

//go:wasmimport env proxy_continue_stream
func hostContinue(direction uint32) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func hostTick(period uint32) uint32

//go:wasmimport env proxy_register_shared_queue
func hostRegister(name unsafe.Pointer, size uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_enqueue_shared_queue
func hostEnqueue(id uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_dequeue_shared_queue
func hostDequeue(id uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_define_metric
func hostDefine(kind uint32, name unsafe.Pointer, size uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_increment_metric
func hostIncrement(id uint32, by int64) uint32

const (
	requestHeaders, responseHeaders, callHeaders = 0, 2, 6
	requestBody, responseBody, configuration     = 0, 1, 7
)

func pointer(text string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))
}

func log(text string) {
	data, size := pointer(text)
	hostLog(3, data, size)
}

func header(kind uint32, name string) string {
	var data *byte
	var length uint32
	at, size := pointer(name)
	if hostGetHeader(kind, at, size, unsafe.Pointer(&data), unsafe.Pointer(&length)) != 0 {
		return ""
	}
	return string(unsafe.Slice(data, length))
}

func setHeader(kind uint32, name, value string) {
	at, size := pointer(name)
	data, length := pointer(value)
	hostSetHeader(kind, at, size, data, length)
}

func buffer(kind uint32) string {
	var data *byte
	var length uint32
	if hostGetBytes(kind, 0, 1<<30, unsafe.Pointer(&data), unsafe.Pointer(&length)) != 0 {
		return ""
	}
	return string(unsafe.Slice(data, length))
}

func setBuffer(kind uint32, value string) {
	data, size := pointer(value)
	hostSetBytes(kind, 0, 1<<30, data, size)
}

func setProperty(path string) {
	at, size := pointer(path)
	hostSetProperty(at, size, at, size)
}

func respond(status uint32, text string) {
	data, size := pointer(text)
	hostRespond(status, nil, 0, data, size, nil, 0, -1)
}

// Memory that the host has asked for: it is the host's until its function returns.
var given [8][]byte
var gave int

//go:wasmexport proxy_on_memory_allocate
func allocate(size uint32) *byte {
	gave++
	given[gave%len(given)] = make([]byte, size)
	return unsafe.SliceData(given[gave%len(given)])
}

//go:wasmexport proxy_abi_version_0_2_1
func version() {}

var words = map[uint32]string{}
var counter uint32

// Requests that wait for a call, by its number.
var waiting = map[uint32]uint32{}

//go:wasmexport proxy_on_configure
func configure(context, size uint32) uint32 {
	words[context] = buffer(configuration)
	name, length := pointer("requests.seen")
	hostDefine(0, name, length, unsafe.Pointer(&counter))
	if words[context] == "bad" {
		return 0
	}
	if strings.HasPrefix(words[context], "ticks ") {
		name, length := pointer("items")
		hostRegister(name, length, unsafe.Pointer(&queue))
		hostTick(20)
	}
	return 1
}

var queue uint32

//go:wasmexport proxy_on_tick
func onTick(context uint32) {
	hostTick(0)
	data, size := pointer("item")
	hostEnqueue(queue, data, size)
}

// Calls the server that the configuration names.
//
//go:wasmexport proxy_on_queue_ready
func onQueue(context, ready uint32) {
	var data *byte
	var length uint32
	if hostDequeue(ready, unsafe.Pointer(&data), unsafe.Pointer(&length)) != 0 {
		return
	}
	log("queue has " + string(unsafe.Slice(data, length)))
	var id uint32
	at, size := pointer(strings.TrimPrefix(words[context], "ticks "))
	hostCall(at, size, nil, 0, nil, 0, nil, 0, 2000, unsafe.Pointer(&id))
}

var parents = map[uint32]uint32{}

//go:wasmexport proxy_on_context_create
func create(context, parent uint32) { parents[context] = parent }

//go:wasmexport proxy_on_delete
func remove(context uint32) { delete(parents, context) }

//go:wasmexport proxy_on_request_headers
func onRequest(context, count, end uint32) uint32 {
	hostIncrement(counter, 1)
	path := header(requestHeaders, ":path")
	log("request " + path)
	setHeader(requestHeaders, "X-Wasm", words[parents[context]]+" "+header(requestHeaders, "x-who"))
	switch {
	case strings.Contains(path, "deny"):
		respond(403, "denied by "+words[parents[context]])
		return 1
	case strings.Contains(path, "panic"):
		panic("of the filter")
	case strings.Contains(path, "loop"):
		for {
		}
	case strings.Contains(path, "grow"):
		kept := [][]byte{}
		for {
			kept = append(kept, make([]byte, 1<<20))
			kept[len(kept)-1][0] = 1
		}
	case strings.Contains(path, "call"):
		var id uint32
		to := header(requestHeaders, "x-call")
		at, size := pointer(to)
		hostCall(at, size, nil, 0, nil, 0, nil, 0, 2000, unsafe.Pointer(&id))
		waiting[id] = context
		return 1
	case strings.Contains(path, "body"):
		setProperty("wasm_process_req_body")
		setProperty("wasm_process_resp_body")
	case strings.Contains(path, "held"):
		setProperty("wasm_process_resp_body")
	}
	return 0
}

//go:wasmexport proxy_on_http_call_response
func onCall(plugin, id, headers, size, trailers uint32) {
	status := header(callHeaders, ":status")
	if waiting[id] == 0 {
		log("answer without a request " + status)
		return
	}
	hostEffective(waiting[id])
	setHeader(requestHeaders, "X-Call", status)
	hostContinue(0)
	delete(waiting, id)
}

//go:wasmexport proxy_on_request_body
func onRequestBody(context, size, end uint32) uint32 {
	setBuffer(requestBody, strings.ToUpper(buffer(requestBody)))
	return 0
}

//go:wasmexport proxy_on_response_headers
func onResponse(context, count, end uint32) uint32 {
	setHeader(responseHeaders, "X-Filter", words[parents[context]])
	if strings.Contains(header(requestHeaders, ":path"), "held") {
		return 1
	}
	return 0
}

//go:wasmexport proxy_on_response_body
func onResponseBody(context, size, end uint32) uint32 {
	if end != 0 {
		setBuffer(responseBody, buffer(responseBody)+" seen")
	}
	return 0
}

func main() {}
