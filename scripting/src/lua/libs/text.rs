//! Encodings and checksums of `ngx`: Base64, URIs, arguments, SQL quotes, MD5, SHA-1 and CRC-32.

mod args;
mod dates;
mod uri;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
use mlua::chunk::ChunkMode;
use mlua::{Error, Lua, LuaString, Result, Table, Value};

use super::super::small;
use super::call::function;
use super::digest::{Algorithm, hex};

/// Takes texts with and without padding, and last characters with leftover bits, as nginx does.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The longest text that Base64 encodes; its result must fit a Lua string.
const LONGEST: usize = 512 << 20;

pub(super) fn add(lua: &Lua, ngx: &Table) -> Result<()> {
    let set = |name: &'static str, function: mlua::Function| ngx.raw_set(name, function);
    set(
        "encode_base64",
        function(lua, "encode_base64", |lua, (text, no_padding): (Value, Option<bool>)| {
            let text = text_of(lua, text)?;
            encode(lua, &STANDARD, &text.as_bytes(), no_padding != Some(true))
        })?,
    )?;
    set(
        "decode_base64",
        function(lua, "decode_base64", |lua, text: Value| {
            let Value::String(text) = text else { return Err(Error::runtime("string argument only")) };
            decode(lua, &STANDARD, &text.as_bytes())
        })?,
    )?;
    set(
        "decode_base64mime",
        function(lua, "decode_base64mime", |lua, text: Value| {
            let Value::String(text) = text else { return Err(Error::runtime("string argument only")) };
            let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
            let text: Vec<u8> = text.as_bytes().iter().copied().filter(in_alphabet).collect();
            decode(lua, &STANDARD, &text)
        })?,
    )?;
    for (name, algorithm) in [("md5_bin", Algorithm::Md5), ("sha1_bin", Algorithm::Sha1)] {
        set(
            name,
            function(lua, name, move |lua, text: Value| {
                small::string(lua, algorithm.digest(&text_of(lua, text)?.as_bytes()))
            })?,
        )?;
    }
    set(
        "md5",
        function(lua, "md5", |lua, text: Value| {
            Ok(hex(&Algorithm::Md5.digest(&text_of(lua, text)?.as_bytes())))
        })?,
    )?;
    set(
        "hmac_sha1",
        function(lua, "hmac_sha1", |lua, (key, text): (Value, Value)| {
            let (key, text) = (text_of(lua, key)?, text_of(lua, text)?);
            small::string(lua, Algorithm::Sha1.hmac(&key.as_bytes(), &text.as_bytes()))
        })?,
    )?;
    for name in ["crc32_short", "crc32_long"] {
        set(
            name,
            function(lua, name, |lua, text: Value| Ok(crc32fast::hash(&text_of(lua, text)?.as_bytes())))?,
        )?;
    }
    set(
        "quote_sql_str",
        function(lua, "quote_sql_str", |lua, text: LuaString| {
            small::string(lua, quote_sql(&text.as_bytes()))
        })?,
    )?;
    uri::add(lua, ngx)?;
    args::add(lua, ngx)?;
    dates::add(lua, ngx)
}

/// Functions of `ngx.base64` and others that are in no global table.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    group.raw_set(
        "encode_base64url",
        function(lua, "encode_base64url", |lua, text: LuaString| encode(lua, &URL, &text.as_bytes(), false))?,
    )?;
    group.raw_set(
        "decode_base64url",
        function(lua, "decode_base64url", |lua, text: LuaString| decode(lua, &URL, &text.as_bytes()))?,
    )?;
    group.raw_set(
        "to_hex",
        function(lua, "to_hex", |lua, text: LuaString| small::string(lua, hex(&text.as_bytes())))?,
    )?;
    group.raw_set(
        "from_hex",
        function(lua, "from_hex", |lua, text: LuaString| {
            from_hex(&text.as_bytes()).map(|bytes| small::string(lua, bytes)).transpose()
        })?,
    )?;
    group.raw_set(
        "escape_path",
        function(lua, "escape_path", |lua, text: LuaString| {
            let mut escaped = Vec::new();
            uri::escape(&text.as_bytes(), uri::in_path, &mut escaped);
            small::string(lua, escaped)
        })?,
    )?;
    // A function that makes a chunk of a text with an environment of its own; texts only, no bytecode.
    group.raw_set(
        "chunk",
        function(lua, "chunk", |lua, (source, name): (LuaString, String)| {
            let source = source.as_bytes().to_vec();
            let load = move |lua: &Lua, env: Option<Table>| {
                let chunk = lua.load(source.as_slice()).set_name(name.as_str()).set_mode(ChunkMode::Text);
                match env {
                    Some(env) => chunk.set_environment(env).into_function(),
                    None => chunk.into_function(),
                }
            };
            Ok(match load(lua, None) {
                Ok(_) => (Some(lua.create_function(move |lua, env: Table| load(lua, Some(env)))?), None),
                Err(Error::SyntaxError { message, .. }) => (None, Some(message)),
                Err(error) => return Err(error),
            })
        })?,
    )?;
    group.raw_set(
        "near",
        function(lua, "near", |_, (name, known): (String, Vec<String>)| {
            Ok(near(&name, known.iter().map(String::as_str)).join(", "))
        })?,
    )
}

/// The text of an argument as `ngx` functions take it: nothing is the empty text.
fn text_of(lua: &Lua, value: Value) -> Result<LuaString> {
    match value {
        Value::String(text) => Ok(text),
        Value::Nil | Value::Boolean(false) => small::string(lua, ""),
        Value::Boolean(true) => small::string(lua, "true"),
        other => match lua.coerce_string(other.clone())? {
            Some(text) => Ok(text),
            None => Err(Error::runtime(format!("string expected, got {}", other.type_name()))),
        },
    }
}

fn encode(lua: &Lua, engine: &GeneralPurpose, text: &[u8], padded: bool) -> Result<LuaString> {
    if text.len() > LONGEST {
        return Err(Error::runtime(format!("text is longer than {LONGEST} bytes")));
    }
    let mut encoded = engine.encode(text);
    if !padded {
        encoded.truncate(encoded.trim_end_matches('=').len());
    }
    small::string(lua, encoded)
}

/// Decodes up to the first `=`; `nil` for an invalid text.
fn decode(lua: &Lua, engine: &GeneralPurpose, text: &[u8]) -> Result<Option<LuaString>> {
    let text = text.split(|byte| *byte == b'=').next().unwrap_or_default();
    engine.decode(text).ok().map(|bytes| small::string(lua, bytes)).transpose()
}

fn quote_sql(text: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    quoted.push(b'\'');
    for &byte in text {
        let escaped = match byte {
            0 => b'0',
            8 => b'b',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            26 => b'Z',
            b'\\' | b'\'' | b'"' => byte,
            _ => {
                quoted.push(byte);
                continue;
            }
        };
        quoted.extend([b'\\', escaped]);
    }
    quoted.push(b'\'');
    quoted
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    text.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Up to three names that resemble `name`, best first.
pub(super) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<(f64, &str)> = known
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(likeness, other)| *likeness > 0.8 && *other != name)
        .collect();
    found.sort_by(|one, two| two.0.total_cmp(&one.0).then(one.1.cmp(two.1)));
    found.dedup();
    found.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}
