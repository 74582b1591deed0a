//! Properties: the variables of APISIX by their names, and those of Envoy by their paths.
//!
//! A path is parts with a zero between them. One part is a variable, `remote_addr`; two or three are Envoy's,
//! `request.headers.accept`. As there, numbers are 64 bits in little-endian order, and times are nanoseconds.

use sdk::Exchange;
use sdk::client::Verdict;
use sdk::vars::Var;
use wasmtime::Caller;

use super::memory::{Outcome, Refusal, ReturnTo, Slice, copy, give};
use super::vm::Vm;

/// The longest path, and the largest value that is set.
const LONGEST_PATH: usize = 1024;
const LONGEST_VALUE: usize = 64 << 10;

/// Variables whose lookup is kept. Others, such as names made of a request's data, are looked up each time.
const MOST_VARS: usize = 256;

/// As APISIX has them: a module that sets one to a value sees the body of the request, or of the response.
pub(super) const PROCESS_REQUEST_BODY: &[u8] = b"wasm_process_req_body";
pub(super) const PROCESS_RESPONSE_BODY: &[u8] = b"wasm_process_resp_body";

/// The parts of a path.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    let path = path.strip_suffix(b"\0").unwrap_or(path);
    path.split(|byte| *byte == 0).collect()
}

/// `proxy_get_property`.
pub(super) fn get(caller: &mut Caller<'_, Vm>, path: Slice, result: ReturnTo) -> Outcome {
    let path = copy(caller, path, LONGEST_PATH)?;
    let value = value(caller.data_mut(), &path)?;
    give(caller, &value, result)
}

fn value(vm: &mut Vm, path: &[u8]) -> Outcome<Vec<u8>> {
    let parts = parts(path);
    if let Some(set) = vm.https.get(&vm.effective).and_then(|http| http.property(&parts.join(&0))) {
        return Ok(set.to_vec());
    }
    if let [b"plugin_name" | b"plugin_root_id" | b"plugin_vm_id"] = parts[..] {
        return Ok(vm.plugin.as_bytes().to_vec());
    }
    if let [name] = parts[..] {
        return variable(vm, name);
    }
    vm.exchange(|x| of_envoy(x, &parts))?.ok_or(Refusal::NOT_FOUND)
}

fn variable(vm: &mut Vm, name: &[u8]) -> Outcome<Vec<u8>> {
    let name = std::str::from_utf8(name).map_err(|_| Refusal::NOT_FOUND)?.to_ascii_lowercase();
    if let Some(var) = vm.vars.get(&name) {
        return vm.exchange(|x| read(x, var))?.ok_or(Refusal::NOT_FOUND);
    }
    let var = Var::parse(&name);
    let value = vm.exchange(|x| read(x, &var))?;
    if vm.vars.len() < MOST_VARS && var.is_known() {
        vm.vars.insert(name, var);
    }
    value.ok_or(Refusal::NOT_FOUND)
}

fn read(x: &Exchange<'_>, var: &Var) -> Option<Vec<u8>> {
    var.of(x).map(|value| value.into_owned())
}

fn named(x: &Exchange<'_>, name: &str) -> Option<Vec<u8>> {
    read(x, &Var::parse(name))
}

fn number(value: u64) -> Option<Vec<u8>> {
    Some(value.to_le_bytes().to_vec())
}

/// A property by its path in Envoy.
fn of_envoy(x: &Exchange<'_>, path: &[&[u8]]) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    match (*first, rest) {
        (b"request", [b"headers", name]) => x.request().fields.get_named(name).map(<[u8]>::to_vec),
        (b"response", [b"headers", name]) => x.response().fields.get_named(name).map(<[u8]>::to_vec),
        (b"response", [b"trailers", name]) => x.response_trailers().get_named(name).map(<[u8]>::to_vec),
        (b"request", [name]) => of_request(x, name),
        (b"response", [name]) => match *name {
            b"code" if x.status() != 0 => number(u64::from(x.status())),
            b"code_details" => named(x, "sluice_reason").filter(|text| !text.is_empty()),
            b"size" => number(x.timing().body_sent),
            b"total_size" => number(x.timing().sent),
            _ => None,
        },
        (b"source", [b"address"]) => {
            let client = x.client();
            Some(std::net::SocketAddr::new(client.ip(), client.port()).to_string().into_bytes())
        }
        (b"source", [b"port"]) => number(u64::from(x.client().port())),
        (b"destination", [b"address"]) => Some(x.client().local.to_string().into_bytes()),
        (b"destination", [b"port"]) => number(u64::from(x.client().local.port())),
        (b"connection", [name]) => of_connection(x, name),
        (b"upstream", [b"address"]) => x.upstream_addr().map(|addr| addr.to_string().into_bytes()),
        (b"upstream", [b"port"]) => x.upstream_addr().and_then(|addr| number(u64::from(addr.port()))),
        _ => None,
    }
}

fn of_request(x: &Exchange<'_>, name: &[u8]) -> Option<Vec<u8>> {
    let of_header = |name: &str| x.header(name).map(<[u8]>::to_vec);
    match name {
        b"path" => Some(x.request().target().to_vec()),
        b"url_path" => Some(x.request().target().split(|byte| *byte == b'?').next()?.to_vec()),
        b"host" => Some(x.request().authority().to_vec()),
        b"scheme" => named(x, "scheme"),
        b"method" => Some(x.request().method_bytes().to_vec()),
        b"query" => Some(x.query().to_vec()),
        b"protocol" => named(x, "server_protocol"),
        b"id" => named(x, "request_id"),
        b"referer" => of_header("Referer"),
        b"useragent" => of_header("User-Agent"),
        b"time" => number(x.start_ms().saturating_mul(1_000_000)),
        b"duration" => number(x.timing().total_us.saturating_mul(1000)),
        b"size" => number(x.body().len() as u64),
        b"total_size" => number(x.timing().received),
        _ => None,
    }
}

fn of_connection(x: &Exchange<'_>, name: &[u8]) -> Option<Vec<u8>> {
    let session = x.client().session.as_deref();
    match name {
        b"mtls" => {
            let is_verified = session.is_some_and(|session| session.verdict == Verdict::Success);
            Some(vec![u8::from(is_verified)])
        }
        b"requested_server_name" => Some(session?.server_name.as_deref()?.as_bytes().to_vec()),
        b"tls_version" => session.map(|session| session.protocol.as_bytes().to_vec()),
        b"subject_peer_certificate" => Some(session?.certificate.as_ref()?.subject.clone().into_bytes()),
        _ => None,
    }
}

/// `proxy_set_property`. Variables that decide how the request is forwarded have that effect, others are the module's.
pub(super) fn set(caller: &mut Caller<'_, Vm>, path: Slice, value: Slice) -> Outcome {
    let path = copy(caller, path, LONGEST_PATH)?;
    let value = copy(caller, value, LONGEST_VALUE)?;
    let vm = caller.data_mut();
    let path = parts(&path).join(&0);
    if matches!(&path[..], b"upstream_uri" | b"upstream_host") && !vm.http()?.count_change(&path, &value) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    match &path[..] {
        b"upstream_uri" if value.first() == Some(&b'/') && value.iter().all(u8::is_ascii_graphic) => {
            vm.request(|x| x.set_upstream_uri(&value))
        }
        b"upstream_host" if !value.is_empty() && value.iter().all(u8::is_ascii_graphic) => {
            vm.request(|x| x.set_upstream_host(&value))
        }
        b"upstream_uri" | b"upstream_host" => Err(Refusal::BAD_ARGUMENT),
        _ => match vm.http()?.set_property(&path, &value) {
            true => Ok(()),
            false => Err(Refusal::INTERNAL_FAILURE),
        },
    }
}
