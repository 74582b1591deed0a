//! The values of `config.yaml`, a function for each kind: it checks the value and reads it.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{AdminKey, AdminRole, Disk, Provider, Workers, Zone};
use crate::Invalid;
use crate::invalid::nearest;
use crate::schema::json_name;

pub fn boolean(value: &Value) -> Result<bool, Invalid> {
    value.as_bool().ok_or_else(|| wrong_type("boolean", value))
}

/// The fewest bytes of a key that cannot be guessed.
const LONG: usize = 16;

/// A key that comes in a header.
pub fn long_key(value: &Value) -> Result<&str, Invalid> {
    let key = text(value)?;
    if key.len() < LONG || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        // It is a secret, if a bad one.
        return Err(Invalid::new("this key can be guessed, or cannot be sent")
            .expected(format!("at least {LONG} visible ASCII characters"))
            .hint("take a random one: `openssl rand -hex 16`"));
    }
    Ok(key)
}

/// A token (RFC 9110 section 5.1).
pub fn header_name(value: &Value) -> Result<&str, Invalid> {
    let name = text(value)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        let wrong = Invalid::new("this cannot be the name of a header");
        return Err(wrong.expected("letters, digits and !#$%&'*+-.^_`|~").got(name));
    }
    Ok(name)
}

pub fn switch(value: &Value) -> Result<bool, Invalid> {
    match value {
        Value::Bool(on) => Ok(*on),
        Value::String(text) if text == "on" => Ok(true),
        Value::String(text) if text == "off" => Ok(false),
        other => Err(wrong_value("`on` or `off`", other)),
    }
}

pub fn text(value: &Value) -> Result<&str, Invalid> {
    value.as_str().ok_or_else(|| wrong_type("string", value))
}

/// It becomes a part of a key in etcd, where a slash would begin another part.
pub fn id(value: &Value) -> Result<&Value, Invalid> {
    let fits = |text: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(known)
    };
    match value {
        Value::Number(number) if number.is_u64() => Ok(value),
        Value::String(text) if fits(text) => Ok(value),
        Value::String(_) | Value::Number(_) => {
            Err(wrong_value("up to 64 letters, digits and `-_.`, or an integer", value))
        }
        _ => Err(wrong_type("string", value)),
    }
}

/// Where a log goes: a path.
pub fn log_path(value: &Value) -> Result<&str, Invalid> {
    let path = text(value)?;
    if path.is_empty() || path.starts_with("syslog:") || path.contains('$') || path.contains('\0') {
        return Err(wrong_value("the path of a file, /dev/stdout or /dev/stderr", value)
            .hint("logs are written to files and outputs alone; `syslog:` and variables are not served"));
    }
    Ok(path)
}

/// Where the access log goes; `None` is nowhere. YAML reads `off` as false in some of its versions.
pub fn access_log(value: &Value) -> Result<Option<&str>, Invalid> {
    match value {
        Value::Bool(false) => Ok(None),
        Value::String(text) if text == "off" => Ok(None),
        path => log_path(path).map(Some),
    }
}

/// Reads a list, telling which item is wrong.
pub fn list<'a, T>(
    value: &'a Value,
    item: impl Fn(&'a Value) -> Result<T, Invalid>,
) -> Result<Vec<T>, Invalid> {
    let items = match value {
        Value::Array(items) => items,
        other => return Err(wrong_type("array", other).hint("write a list, even of one item")),
    };
    let read = |(at, value)| item(value).map_err(|invalid: Invalid| invalid.within(at));
    items.iter().enumerate().map(read).collect()
}

pub fn one_of<'a>(value: &'a Value, known: &[&str]) -> Result<&'a str, Invalid> {
    let text = text(value)?;
    if known.contains(&text) {
        return Ok(text);
    }
    let invalid = wrong_value(&format!("one of {}", known.join(", ")), value);
    Err(match nearest(text, known.iter().copied()) {
        Some(close) => invalid.hint(format!("did you mean `{close}`?")),
        None => invalid,
    })
}

pub fn count(value: &Value, min: u64, max: u64) -> Result<u64, Invalid> {
    let number = value.as_u64().ok_or_else(|| wrong_type("integer", value))?;
    if (min..=max).contains(&number) {
        return Ok(number);
    }
    Err(wrong_value(&format!("an integer from {min} to {max}"), value))
}

pub fn port(value: &Value) -> Result<u16, Invalid> {
    let number = value.as_u64().ok_or_else(|| wrong_type("integer", value))?;
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(wrong_value("a port from 1 to 65535", value)),
    }
}

pub fn ip(value: &Value) -> Result<IpAddr, Invalid> {
    let text = text(value)?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().map_err(|_| wrong_value("an IPv4 or IPv6 address", value))
}

pub fn network(value: &Value) -> Result<IpNet, Invalid> {
    crate::network::parse(text(value)?).ok_or_else(|| wrong_value("an address or CIDR", value))
}

pub fn real_ip_from(value: &Value) -> Result<Option<IpNet>, Invalid> {
    if value == "unix:" {
        return Ok(None);
    }
    network(value).map(Some)
}

/// Reads a time of up to ten years.
///
/// # Errors
/// The value is not a time, or a longer one.
pub fn time(value: &Value) -> Result<Duration, Invalid> {
    const EXPECTED: &str = "a time such as 60s, 500ms or 1h30m";
    const TEN_YEARS: Duration = Duration::from_secs(315_360_000);
    let parsed = match value {
        Value::Number(number) => {
            number.as_f64().filter(|n| *n >= 0.0).and_then(|n| Duration::try_from_secs_f64(n).ok())
        }
        Value::String(text) => parse_time(text),
        other => return Err(wrong_type(EXPECTED, other)),
    };
    // Deadlines are sums of these; ten years keeps them far from overflow.
    parsed.filter(|time| *time <= TEN_YEARS).ok_or_else(|| wrong_value(EXPECTED, value))
}

fn parse_time(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => Duration::from_millis(1),
            "" | "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86_400),
            "w" => Duration::from_secs(604_800),
            "M" => Duration::from_secs(2_592_000),
            "y" => Duration::from_secs(31_536_000),
            _ => return None,
        };
        total = total.checked_add(unit.checked_mul(u32::try_from(number).ok()?)?)?;
        rest = rest[letters..].trim_start();
    }
    Some(total)
}

/// Keys, which no message repeats.
pub fn keyring(value: &Value) -> Result<Vec<String>, Invalid> {
    let one =
        |value: &Value| match value.as_str() {
            Some(key) if matches!(key.len(), 16 | 32) => Ok(key.to_owned()),
            _ => Err(Invalid::new("a key has 16 or 32 bytes")
                .expected("a text of 16 bytes (AES-128) or 32 (AES-256)")),
        };
    match value {
        Value::Array(_) => list(value, one),
        value => Ok(vec![one(value)?]),
    }
}

/// Reads a size in bytes.
///
/// # Errors
/// The value is not a size.
pub fn size(value: &Value) -> Result<u64, Invalid> {
    const EXPECTED: &str = "a size such as 8k, 10m or 1g";
    let parsed = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => parse_size(text),
        other => return Err(wrong_type(EXPECTED, other)),
    };
    parsed.ok_or_else(|| wrong_value(EXPECTED, value))
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[digits..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// The bytes all buffers hold together.
pub fn buffers(value: &Value) -> Result<u64, Invalid> {
    let parsed = text(value)?
        .split_once(' ')
        .and_then(|(number, size)| number.parse::<u64>().ok()?.checked_mul(parse_size(size.trim())?));
    parsed.filter(|bytes| *bytes > 0).ok_or_else(|| wrong_value("a number and a size such as `4 8k`", value))
}

pub fn workers(value: &Value) -> Result<Workers, Invalid> {
    const EXPECTED: &str = "`auto` or a number from 1 to 1024";
    let number = match value {
        Value::String(text) if text == "auto" => return Ok(Workers::Auto),
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_u64(),
        other => return Err(wrong_type(EXPECTED, other)),
    };
    let fits = number.and_then(|n| u16::try_from(n).ok()).filter(|n| (1..=1024).contains(n));
    fits.map(Workers::Count).ok_or_else(|| wrong_value(EXPECTED, value))
}

/// One of `node_listen`: address and port, and whether HTTP/2 is served there, as far as they are written; and
/// whether HTTP/3 is.
pub type ListenEntry = (Option<IpAddr>, u16, Option<bool>, bool);

/// Reads `node_listen`.
pub fn listen(value: &Value) -> Result<Vec<ListenEntry>, Invalid> {
    match value {
        Value::Array(items) if items.is_empty() => Err(wrong_value("at least one port", value)),
        Value::Array(_) => list(value, listen_one),
        other => listen_one(other).map(|one| vec![one]),
    }
}

fn listen_one(value: &Value) -> Result<ListenEntry, Invalid> {
    let Value::Object(map) = value else {
        return match value {
            Value::Number(_) => port(value).map(|port| (None, port, None, false)),
            other => Err(no_address("a port, or a map of `port` and `ip`", other)),
        };
    };
    listen_on(map, 9080)
}

fn listen_on(map: &Map<String, Value>, default: u16) -> Result<ListenEntry, Invalid> {
    let present = |name: &str| map.get(name).filter(|value| !value.is_null());
    let address = present("ip").map(|value| ip(value).map_err(|invalid| invalid.at("/ip"))).transpose()?;
    let number =
        present("port").map(|value| port(value).map_err(|invalid| invalid.at("/port"))).transpose()?;
    let http2 = present("enable_http2")
        .map(|value| boolean(value).map_err(|invalid| invalid.at("/enable_http2")))
        .transpose()?;
    Ok((address, number.unwrap_or(default), http2, false))
}

/// Addresses for TLS.
pub fn tls_listen(value: &Value) -> Result<Vec<ListenEntry>, Invalid> {
    let listen = list(value, |item| {
        let Value::Object(map) = item else { return Err(no_address("a map of `port` and `ip`", item)) };
        let mut http3 = false;
        for name in ["enable_http3", "enable_quic"] {
            if let Some(value) = map.get(name).filter(|value| !value.is_null()) {
                http3 |= boolean(value).map_err(|invalid| invalid.at(format!("/{name}")))?;
            }
        }
        let (address, port, http2, _) = listen_on(map, 9443)?;
        Ok((address, port, http2, http3))
    })?;
    match listen.is_empty() {
        true => Err(wrong_value("at least one port", value)),
        false => Ok(listen),
    }
}

/// The versions of TLS that are named.
pub fn tls_protocols(value: &Value) -> Result<Vec<&str>, Invalid> {
    const KNOWN: [&str; 6] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
    let named: Vec<&str> = text(value)?.split_whitespace().collect();
    match named.iter().find(|name| !KNOWN.contains(name)) {
        Some(_) => Err(wrong_value("versions of TLS such as `TLSv1.2 TLSv1.3`", value)),
        None if named.is_empty() => Err(wrong_value("versions of TLS such as `TLSv1.2 TLSv1.3`", value)),
        None => Ok(named),
    }
}

pub fn zones(value: &Value) -> Result<Vec<Zone>, Invalid> {
    let zones = list(value, zone)?;
    if zones.is_empty() {
        return Err(wrong_value("at least one zone", value));
    }
    for (at, zone) in zones.iter().enumerate() {
        if zones[..at].iter().any(|other| other.name == zone.name) {
            return Err(Invalid::new(format!("two cache zones are named `{}`", zone.name))
                .at("/name")
                .within(at)
                .expected("a name of its own"));
        }
    }
    Ok(zones)
}

fn zone(value: &Value) -> Result<Zone, Invalid> {
    const DISK: [&str; 3] = ["disk_size", "disk_path", "cache_levels"];
    if !value.is_object() {
        return Err(wrong_type("object", value));
    }
    let name = text(member(value, "name")?).map_err(|invalid| invalid.at("/name"))?;
    let memory_size = size(member(value, "memory_size")?).map_err(|invalid| invalid.at("/memory_size"))?;
    let disk = if DISK.iter().any(|name| value.get(name).is_some()) {
        Some(Disk {
            size: size(member(value, "disk_size")?).map_err(|invalid| invalid.at("/disk_size"))?,
            path: text(member(value, "disk_path")?).map_err(|invalid| invalid.at("/disk_path"))?.into(),
            levels: levels(member(value, "cache_levels")?).map_err(|invalid| invalid.at("/cache_levels"))?,
        })
    } else {
        None
    };
    Ok(Zone { name: name.to_owned(), memory_size, disk })
}

/// nginx's `levels`: `1:2` is folders of one and of two letters.
fn levels(value: &Value) -> Result<Vec<u8>, Invalid> {
    let level = |text: &str| text.parse::<u8>().ok().filter(|level| matches!(level, 1 | 2));
    let levels: Option<Vec<u8>> = text(value)?.split(':').map(level).collect();
    levels.filter(|levels| levels.len() <= 3).ok_or_else(|| {
        wrong_value("up to three levels of 1 or 2, such as \"1:2\"", value).hint("put it in quotes")
    })
}

pub fn admin_key(value: &Value) -> Result<AdminKey, Invalid> {
    if !value.is_object() {
        return Err(wrong_type("a map of `name`, `key` and `role`", value));
    }
    let optional = |name: &str| value.get(name).filter(|value| !value.is_null());
    let key = match optional("key") {
        Some(key) => text(key).map_err(|invalid| invalid.at("/key").hint("put the key in quotes"))?,
        None => "",
    };
    let name = optional("name").map(|name| text(name).map_err(|invalid| invalid.at("/name"))).transpose()?;
    let role = optional("role")
        .map(|role| one_of(role, &["admin", "viewer"]).map_err(|invalid| invalid.at("/role")))
        .transpose()?;
    Ok(AdminKey {
        name: name.unwrap_or("admin").to_owned(),
        key: key.to_owned(),
        role: if role == Some("viewer") { AdminRole::Viewer } else { AdminRole::Admin },
    })
}

pub fn provider(value: &Value) -> Result<Provider, Invalid> {
    Ok(match one_of_providers(value, &["embedded", "yaml", "json", "etcd"])? {
        "yaml" => Provider::Yaml,
        "json" => Provider::Json,
        "etcd" => Provider::Etcd,
        _ => Provider::Embedded,
    })
}

/// Reads the provider of a data plane.
pub fn file_provider(value: &Value) -> Result<Provider, Invalid> {
    one_of_providers(value, &["embedded", "yaml", "json", "etcd"])?;
    provider(value)
}

fn one_of_providers<'v>(value: &'v Value, known: &[&str]) -> Result<&'v str, Invalid> {
    let name = text(value)?;
    if !known.contains(&name) && name == "xds" {
        return Err(Invalid::new(format!("{name} is not supported yet; use etcd, yaml or json"))
            .expected("one of etcd, yaml, json")
            .got(format!("`{name}`"))
            .hint("write the resources into apisix.yaml beside this file"));
    }
    one_of(value, known)
}

/// Reads `- name: $variable`.
pub fn label(value: &Value) -> Result<(String, String), Invalid> {
    let expected = "one name and a variable, such as `upstream_addr: $upstream_addr`";
    match value.as_object().map(|map| map.iter().collect::<Vec<_>>()).as_deref() {
        Some([(name, variable)]) => {
            let variable = text(variable).map_err(|invalid| invalid.within(name))?;
            Ok(((*name).clone(), variable.strip_prefix('$').unwrap_or(variable).to_owned()))
        }
        _ => Err(wrong_type(expected, value)),
    }
}

pub fn metric_prefix(value: &Value) -> Result<&str, Invalid> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    let is_prefix = |text: &str| {
        text.len() <= 64 && text.bytes().all(allowed) && !text.starts_with(|c: char| c.is_ascii_digit())
    };
    let expected = "up to 64 letters, digits, `_` and `:`, no digit first";
    value.as_str().filter(|text| is_prefix(text)).ok_or_else(|| wrong_value(expected, value))
}

/// Far more buckets than dashboards show; each costs memory for every label set.
const MAX_BUCKETS: usize = 64;

pub fn buckets(value: &Value) -> Result<Vec<f64>, Invalid> {
    let bounds = list(value, |item| item.as_f64().ok_or_else(|| wrong_type("number", item)))?;
    if bounds.is_empty() || bounds.len() > MAX_BUCKETS || bounds[0] <= 0.0 {
        return Err(wrong_value("1 to 64 positive numbers (milliseconds)", value));
    }
    if let Some(at) = bounds.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(Invalid::new("buckets must grow")
            .within(at + 1)
            .expected(format!("more than {}", bounds[at])));
    }
    Ok(bounds)
}

pub(super) fn member<'a>(value: &'a Value, name: &str) -> Result<&'a Value, Invalid> {
    value.get(name).ok_or_else(|| {
        Invalid::new(format!("property \"{name}\" is required")).expected(format!("a property `{name}`"))
    })
}

pub fn wrong_type(expected: &str, value: &Value) -> Invalid {
    let invalid = Invalid::new(format!("wrong type: expected {expected}, got {}", json_name(value)))
        .expected(expected)
        .got(json_name(value));
    match value {
        Value::String(text) if expected == "integer" && text.parse::<u64>().is_ok() => {
            invalid.hint("remove the quotes around the number")
        }
        Value::String(text) if text.starts_with("${") => {
            invalid.hint("a variable of the environment is written `${{NAME}}`")
        }
        Value::Number(_) | Value::Bool(_) if expected == "string" => invalid.hint("put the value in quotes"),
        _ => invalid,
    }
}

/// Where a map of an address was expected.
fn no_address(expected: &str, value: &Value) -> Invalid {
    let invalid = wrong_type(expected, value);
    match as_map_of_address(value).or_else(|| without_space(value)) {
        Some(help) => invalid.hint(help),
        None => invalid,
    }
}

/// How `127.0.0.1:9180` is written as a map.
pub fn as_map_of_address(value: &Value) -> Option<String> {
    let text = match value {
        Value::Number(number) => format!(":{number}"),
        value => value.as_str()?.to_owned(),
    };
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let address: IpAddr = match host {
        "" => return Some(format!("write it as `port: {port}`, on a line of its own")),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        "*" => IpAddr::from([0, 0, 0, 0]),
        host => ip(&Value::from(host)).ok()?,
    };
    // In YAML, an address that begins with a colon is no text without quotes.
    let quote = if address.is_ipv6() { "\"" } else { "" };
    Some(format!("write it as `ip: {quote}{address}{quote}` and `port: {port}`, each on a line of its own"))
}

/// Returns a hint for `name:value`, where a map was expected.
pub fn without_space(value: &Value) -> Option<String> {
    let (name, behind) = value.as_str()?.split_once(':')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    // `http://host` is no name.
    (is_name && !behind.contains(' ') && !behind.starts_with("//"))
        .then(|| "write a space behind the colon".to_owned())
}

fn wrong_value(expected: &str, value: &Value) -> Invalid {
    let got: String = match value {
        Value::String(text) => text.chars().take(60).collect(),
        other => other.to_string().chars().take(60).collect(),
    };
    Invalid::new(format!("expected {expected}, got `{got}`")).expected(expected).got(format!("`{got}`"))
}

#[cfg(test)]
mod tests;
