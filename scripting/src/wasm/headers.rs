//! Maps of headers: their form in a module's memory, and the functions that read and change them.

use sdk::{Exchange, Fields, HeaderName, Method};
use wasmtime::Caller;

use super::grpc::open::Event;
use super::memory::{Outcome, Refusal, ReturnTo, Slice, copy, give, write_u32};
use super::vm::Vm;

/// Pairs of one map that a module gives, and bytes of the map or of one value.
const MOST_PAIRS: usize = 1000;
const LONGEST: usize = 1 << 20;

/// Bytes of one name.
const LONGEST_NAME: usize = 64 << 10;

type Pair<'a> = (&'a [u8], &'a [u8]);
pub(super) type Owned = Vec<(Vec<u8>, Vec<u8>)>;

/// Which map, by its number in the ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Map {
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
    ResponseTrailers,
    AnswerHeaders,
    AnswerTrailers,
    /// Initial and trailing metadata of a gRPC call.
    EventHeaders,
    EventTrailers,
}

impl Map {
    fn of(number: u32) -> Outcome<Map> {
        Ok(match number {
            0 => Map::RequestHeaders,
            1 => Map::RequestTrailers,
            2 => Map::ResponseHeaders,
            3 => Map::ResponseTrailers,
            4 => Map::EventHeaders,
            5 => Map::EventTrailers,
            6 => Map::AnswerHeaders,
            7 => Map::AnswerTrailers,
            _ => return Err(Refusal::BAD_ARGUMENT),
        })
    }

    /// Whether it has come from another server, for a call; such a map cannot be changed.
    fn is_received(self) -> bool {
        matches!(self, Map::AnswerHeaders | Map::AnswerTrailers | Map::EventHeaders | Map::EventTrailers)
    }
}

/// Reads a map: the number of pairs, their lengths, and the names and values, each with a zero behind it.
pub(super) fn pairs(data: &[u8]) -> Outcome<Vec<Pair<'_>>> {
    let word = |at: usize| -> Option<usize> {
        let word: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(word) as usize)
    };
    if data.len() < 4 {
        // Nothing, or one zero byte.
        return Ok(Vec::new());
    }
    let count = word(0).unwrap_or_default();
    if count > MOST_PAIRS {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let mut at = 4 + count * 8;
    let mut text = |size: usize| -> Option<&[u8]> {
        let found = data.get(at..at.checked_add(size)?)?;
        at += size + 1;
        Some(found)
    };
    let pair = |n: usize| Some((text(word(4 + n * 8)?)?, text(word(8 + n * 8)?)?));
    (0..count).map(pair).collect::<Option<Vec<_>>>().ok_or(Refusal::BAD_ARGUMENT)
}

/// Writes a map.
pub(super) fn encoded(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let bytes: usize = pairs.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
    let mut out = Vec::with_capacity(4 + bytes);
    out.extend((pairs.len() as u32).to_le_bytes());
    for (name, value) in pairs {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
        out.extend_from_slice(text);
        out.push(0);
    }
    out
}

pub(super) fn lower(fields: &Fields) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    fields.iter().map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec()))
}

/// The method, path, host and scheme of a request, as it is forwarded.
const PSEUDO: [&[u8]; 4] = [b":authority", b":path", b":method", b":scheme"];

fn pseudo(x: &Exchange<'_>, name: &[u8]) -> Option<Vec<u8>> {
    match name {
        b":authority" => Some(x.rewritten_host().unwrap_or_else(|| x.request().authority()).to_vec()),
        b":path" => {
            let mut uri = Vec::new();
            x.upstream_uri(&mut uri);
            Some(uri)
        }
        b":method" => Some(match x.upstream_method() {
            Method::Other => x.request().method_bytes().to_vec(),
            method => method.as_str().as_bytes().to_vec(),
        }),
        b":scheme" => Some(if x.client().tls { b"https".to_vec() } else { b"http".to_vec() }),
        _ => None,
    }
}

fn status(x: &Exchange<'_>) -> Vec<u8> {
    x.status().to_string().into_bytes()
}

/// A map that has come from another server, while the callback for it runs.
fn received(vm: &Vm, map: Map) -> Option<&Owned> {
    match (map, &vm.answer, &vm.event) {
        (Map::AnswerHeaders, Some(answer), _) => Some(&answer.headers),
        (Map::AnswerTrailers, Some(answer), _) => Some(&answer.trailers),
        (Map::EventHeaders, _, Some(Event::Head(list))) => Some(list),
        (Map::EventTrailers, _, Some(Event::Trailers(list))) => Some(list),
        _ => None,
    }
}

fn all(vm: &Vm, map: Map) -> Outcome<Owned> {
    match map {
        map if map.is_received() => received(vm, map).cloned().ok_or(Refusal::NOT_FOUND),
        map => vm.request(|x| match map {
            Map::RequestHeaders => {
                let pseudo = PSEUDO.iter().filter_map(|name| Some((name.to_vec(), pseudo(x, name)?)));
                pseudo.chain(lower(&x.request().fields)).collect()
            }
            Map::ResponseHeaders => {
                let status = (b":status".to_vec(), status(x));
                std::iter::once(status).chain(lower(&x.response().fields)).collect()
            }
            Map::RequestTrailers => lower(x.request_trailers()).collect(),
            _ => lower(x.response_trailers()).collect(),
        }),
    }
}

fn one(vm: &Vm, map: Map, name: &[u8]) -> Outcome<Vec<u8>> {
    let of = |fields: &Fields| fields.get_named(name).map(<[u8]>::to_vec);
    let of_list = |list: &Owned| {
        let found = list.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    };
    let found = match map {
        map if map.is_received() => received(vm, map).and_then(of_list),
        map => vm.request(|x| match map {
            Map::RequestHeaders => pseudo(x, name).or_else(|| of(&x.request().fields)),
            Map::ResponseHeaders if name == b":status" => Some(status(x)),
            Map::ResponseHeaders => of(&x.response().fields),
            Map::RequestTrailers => of(x.request_trailers()),
            _ => of(x.response_trailers()),
        })?,
    };
    found.ok_or(Refusal::NOT_FOUND)
}

/// A change of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Replace,
    Remove,
}

fn change(vm: &mut Vm, map: Map, change: Change, name: &[u8], value: &[u8]) -> Outcome {
    if map.is_received() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    // Removals count as well: before there is a response, they are kept for its head.
    if !vm.http()?.count_change(name, value) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    vm.request(|x| changed(x, map, change, name, value)).and_then(|done| done.ok_or(Refusal::BAD_ARGUMENT))
}

/// `None` if the name or value is invalid, or is one that cannot be changed here.
fn changed(x: &mut Exchange<'_>, map: Map, change: Change, name: &[u8], value: &[u8]) -> Option<()> {
    if name.first() == Some(&b':') {
        return change_pseudo(x, map, change, name, value);
    }
    let text = std::str::from_utf8(name).ok()?;
    match map {
        Map::RequestTrailers | Map::ResponseTrailers => {
            let is_request = map == Map::RequestTrailers;
            match (is_request, change) {
                (true, Change::Remove) => x.remove_request_trailer(text),
                (false, Change::Remove) => x.remove_response_trailer(text),
                (true, _) => x.set_request_trailer(text, value).ok()?,
                (false, _) => x.set_response_trailer(text, value).ok()?,
            }
        }
        Map::RequestHeaders => {
            let name = HeaderName::new(text).ok()?;
            if name.is(sdk::Name::Host) {
                return change_pseudo(x, map, change, b":authority", value);
            }
            match change {
                Change::Add => x.add_header(&name, value).ok()?,
                Change::Replace => x.set_header(&name, value).ok()?,
                Change::Remove => x.remove_header(&name),
            }
        }
        _ => {
            let name = HeaderName::new(text).ok()?;
            match change {
                Change::Add => x.add_response_header(&name, value).ok()?,
                Change::Replace => x.set_response_header(&name, value).ok()?,
                Change::Remove => x.remove_response_header(&name),
            }
        }
    }
    Some(())
}

fn change_pseudo(x: &mut Exchange<'_>, map: Map, change: Change, name: &[u8], value: &[u8]) -> Option<()> {
    if change == Change::Remove || !is_valid_pseudo(x, map, name, value) {
        return None;
    }
    match name {
        b":path" => x.set_upstream_uri(value),
        b":authority" => x.set_upstream_host(value),
        b":method" => x.set_upstream_method(Method::from_bytes(value), value),
        b":status" => x.set_status(status_of(value)?),
        // The connection to the upstream decides about the scheme.
        _ => {}
    }
    Some(())
}

fn status_of(value: &[u8]) -> Option<u16> {
    let status = std::str::from_utf8(value).ok()?.parse().ok()?;
    (200..=599).contains(&status).then_some(status)
}

fn is_valid_pseudo(x: &Exchange<'_>, map: Map, name: &[u8], value: &[u8]) -> bool {
    !value.is_empty()
        && value.iter().all(u8::is_ascii_graphic)
        && match (map, name) {
            (Map::RequestHeaders, b":path") => value.starts_with(b"/"),
            (Map::RequestHeaders, b":method") => value.iter().all(u8::is_ascii_alphabetic),
            (Map::RequestHeaders, b":authority" | b":scheme") => true,
            (Map::ResponseHeaders, b":status") => x.has_response() && status_of(value).is_some(),
            _ => false,
        }
}

/// Whether a map may have this pair.
fn is_valid(x: &Exchange<'_>, map: Map, name: &[u8], value: &[u8]) -> bool {
    if name.first() == Some(&b':') {
        return is_valid_pseudo(x, map, name, value);
    }
    if map == Map::RequestHeaders && name.eq_ignore_ascii_case(b"host") {
        return is_valid_pseudo(x, map, b":authority", value);
    }
    let is_name = std::str::from_utf8(name).is_ok_and(|name| HeaderName::new(name).is_ok());
    is_name && Fields::new().append(name, value).is_ok()
}

/// `proxy_get_header_map_pairs`.
pub(super) fn get_pairs(caller: &mut Caller<'_, Vm>, map: u32, result: ReturnTo) -> Outcome {
    let data = encoded(&all(caller.data(), Map::of(map)?)?);
    give(caller, &data, result)
}

/// `proxy_get_header_map_size`.
pub(super) fn get_size(caller: &mut Caller<'_, Vm>, map: u32, result: u32) -> Outcome {
    let size = encoded(&all(caller.data(), Map::of(map)?)?).len();
    write_u32(caller, result, size as u32)
}

/// `proxy_set_header_map_pairs`: headers that are not in the new map are removed.
pub(super) fn set_pairs(caller: &mut Caller<'_, Vm>, map: u32, slice: Slice) -> Outcome {
    let map = Map::of(map)?;
    let data = copy(caller, slice, LONGEST)?;
    let new = pairs(&data)?;
    let vm = caller.data_mut();
    let old = all(vm, map)?;
    // All of it is done, or nothing.
    let is_valid = |x: &mut Exchange<'_>| new.iter().all(|(name, value)| is_valid(x, map, name, value));
    if map.is_received() || !vm.request(is_valid)? {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let removed = old.iter().map(|(name, _)| (&name[..], &b""[..]));
    if !vm.http()?.has_room(removed.chain(new.iter().copied())) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    for (name, _) in old.iter().filter(|(name, _)| name.first() != Some(&b':')) {
        change(vm, map, Change::Remove, name, b"").or_else(|refusal| match refusal {
            // Host has no header of its own.
            Refusal::Status(2) => Ok(()),
            refusal => Err(refusal),
        })?;
    }
    for (name, value) in new {
        let how = if name.first() == Some(&b':') { Change::Replace } else { Change::Add };
        change(vm, map, how, name, value)?;
    }
    Ok(())
}

/// `proxy_get_header_map_value`.
pub(super) fn get_value(caller: &mut Caller<'_, Vm>, map: u32, name: Slice, result: ReturnTo) -> Outcome {
    let map = Map::of(map)?;
    let name = copy(caller, name, LONGEST_NAME)?;
    let value = one(caller.data(), map, &name)?;
    give(caller, &value, result)
}

/// `proxy_add_header_map_value`, `proxy_replace_header_map_value` and `proxy_remove_header_map_value`.
pub(super) fn change_value(
    caller: &mut Caller<'_, Vm>,
    how: Change,
    map: u32,
    name: Slice,
    value: Slice,
) -> Outcome {
    let map = Map::of(map)?;
    let name = copy(caller, name, LONGEST_NAME)?;
    let value = copy(caller, value, LONGEST)?;
    change(caller.data_mut(), map, how, &name, &value)
}
