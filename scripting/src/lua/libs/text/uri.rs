//! `ngx.escape_uri` and `ngx.unescape_uri`.

use mlua::{Lua, Result, Table, Value};

use super::super::super::small;
use super::super::call::function;
use super::text_of;

pub(super) fn add(lua: &Lua, ngx: &Table) -> Result<()> {
    ngx.raw_set(
        "escape_uri",
        function(lua, "escape_uri", |lua, (text, kind): (Value, Option<i64>)| {
            let stays = match kind {
                None | Some(2) => in_component,
                Some(0) => in_uri,
                Some(1) => in_args,
                Some(kind) => {
                    return Err(mlua::Error::runtime(format!("\"type\" {kind} is not expected")));
                }
            };
            let text = text_of(lua, text)?;
            let mut escaped = Vec::new();
            escape(&text.as_bytes(), stays, &mut escaped);
            small::string(lua, escaped)
        })?,
    )?;
    ngx.raw_set(
        "unescape_uri",
        function(lua, "unescape_uri", |lua, text: Value| {
            small::string(lua, unescape(&text_of(lua, text)?.as_bytes()))
        })?,
    )
}

/// Characters that a component of a URI holds unescaped.
pub(super) fn in_component(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn in_uri(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"#%?".contains(&byte)
}

/// Characters that nginx leaves in a path.
pub(super) fn in_path(byte: u8) -> bool {
    in_uri(byte) && !b"\"<>\\^`{|}".contains(&byte)
}

fn in_args(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"#%&+?".contains(&byte)
}

pub(super) fn escape(text: &[u8], stays: fn(u8) -> bool, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        if stays(byte) {
            out.push(byte);
        } else {
            out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

/// Decodes `%XX` and `+`. A `%` without two digits stays.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 3;
                continue;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    out
}
