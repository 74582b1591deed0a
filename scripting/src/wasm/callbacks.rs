//! The functions that a module provides, with the types that the ABI gives them.

use wasmtime::{Instance, Store, TypedFunc, WasmParams, WasmResults};

use super::vm::Vm;

type Call<P, R> = Option<TypedFunc<P, R>>;

/// The functions of an instance. All are optional.
pub(super) struct Callbacks {
    pub context_create: Call<(u32, u32), ()>,
    pub vm_start: Call<(u32, u32), u32>,
    pub configure: Call<(u32, u32), u32>,
    pub request_headers: Headers,
    pub request_body: Call<(u32, u32, u32), u32>,
    pub request_trailers: Call<(u32, u32), u32>,
    pub response_headers: Headers,
    pub response_body: Call<(u32, u32, u32), u32>,
    pub response_trailers: Call<(u32, u32), u32>,
    pub done: Call<u32, u32>,
    pub log: Call<u32, ()>,
    pub delete: Call<u32, ()>,
    pub tick: Call<u32, ()>,
    pub queue_ready: Call<(u32, u32), ()>,
    pub http_call_response: Call<(u32, u32, u32, u32, u32), ()>,
    pub new_connection: Call<u32, u32>,
    pub downstream_data: Call<(u32, u32, u32), u32>,
    pub upstream_data: Call<(u32, u32, u32), u32>,
    pub downstream_close: Call<(u32, u32), ()>,
    pub upstream_close: Call<(u32, u32), ()>,
    pub grpc_initial_metadata: Call<(u32, u32, u32), ()>,
    pub grpc_receive: Call<(u32, u32, u32), ()>,
    pub grpc_trailing_metadata: Call<(u32, u32, u32), ()>,
    pub grpc_close: Call<(u32, u32, u32), ()>,
}

/// A callback for headers; that of version 0.1.0 has no word about the end of the stream.
pub(super) enum Headers {
    None,
    Short(TypedFunc<(u32, u32), u32>),
    Whole(TypedFunc<(u32, u32, u32), u32>),
}

impl Headers {
    pub(super) fn is_some(&self) -> bool {
        !matches!(self, Headers::None)
    }

    pub(super) fn call(
        &self,
        store: &mut Store<Vm>,
        context: u32,
        count: u32,
        is_end: bool,
    ) -> wasmtime::Result<u32> {
        match self {
            Headers::None => Ok(0),
            Headers::Short(call) => call.call(store, (context, count)),
            Headers::Whole(call) => call.call(store, (context, count, u32::from(is_end))),
        }
    }
}

/// Finds the exports of one instance.
struct Exports<'a> {
    instance: &'a Instance,
    store: &'a mut Store<Vm>,
}

impl Exports<'_> {
    /// # Errors
    /// There is a function of the name, of another type.
    fn find<P: WasmParams, R: WasmResults>(&mut self, name: &str) -> Result<Call<P, R>, String> {
        match self.instance.get_func(&mut *self.store, name) {
            None => Ok(None),
            Some(function) => match function.typed(&*self.store) {
                Ok(typed) => Ok(Some(typed)),
                Err(_) => {
                    Err(format!("the exported function `{name}` has another type than the ABI gives it"))
                }
            },
        }
    }

    fn headers(&mut self, name: &str) -> Result<Headers, String> {
        if let Ok(whole) = self.find(name) {
            return Ok(whole.map_or(Headers::None, Headers::Whole));
        }
        self.find(name).map(|short| short.map_or(Headers::None, Headers::Short))
    }
}

impl Callbacks {
    /// # Errors
    /// A function has another type.
    pub(super) fn of(instance: &Instance, store: &mut Store<Vm>) -> Result<Callbacks, String> {
        let mut exports = Exports { instance, store };
        let allocate = match exports.find("proxy_on_memory_allocate")? {
            Some(allocate) => Some(allocate),
            None => exports.find("malloc")?,
        };
        let callbacks = Callbacks {
            context_create: exports.find("proxy_on_context_create")?,
            vm_start: exports.find("proxy_on_vm_start")?,
            configure: exports.find("proxy_on_configure")?,
            request_headers: exports.headers("proxy_on_request_headers")?,
            request_body: exports.find("proxy_on_request_body")?,
            request_trailers: exports.find("proxy_on_request_trailers")?,
            response_headers: exports.headers("proxy_on_response_headers")?,
            response_body: exports.find("proxy_on_response_body")?,
            response_trailers: exports.find("proxy_on_response_trailers")?,
            done: exports.find("proxy_on_done")?,
            log: exports.find("proxy_on_log")?,
            delete: exports.find("proxy_on_delete")?,
            tick: exports.find("proxy_on_tick")?,
            queue_ready: exports.find("proxy_on_queue_ready")?,
            http_call_response: exports.find("proxy_on_http_call_response")?,
            new_connection: exports.find("proxy_on_new_connection")?,
            downstream_data: exports.find("proxy_on_downstream_data")?,
            upstream_data: exports.find("proxy_on_upstream_data")?,
            downstream_close: exports.find("proxy_on_downstream_connection_close")?,
            upstream_close: exports.find("proxy_on_upstream_connection_close")?,
            grpc_initial_metadata: exports.find("proxy_on_grpc_receive_initial_metadata")?,
            grpc_receive: exports.find("proxy_on_grpc_receive")?,
            grpc_trailing_metadata: exports.find("proxy_on_grpc_receive_trailing_metadata")?,
            grpc_close: exports.find("proxy_on_grpc_close")?,
        };
        exports.store.data_mut().allocate = allocate;
        Ok(callbacks)
    }
}
