//! `ngx.http_time`, `ngx.cookie_time` and `ngx.parse_http_time`: dates as headers have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlua::{Error, Lua, LuaString, Result, Table};

use super::super::call::function;

/// The last second of the year 9999, the last that an HTTP date can name.
const LAST: f64 = 253_402_300_799.0;

pub(super) fn add(lua: &Lua, ngx: &Table) -> Result<()> {
    ngx.raw_set(
        "http_time",
        function(lua, "http_time", |_, seconds: f64| Ok(httpdate::fmt_http_date(at(seconds)?)))?,
    )?;
    ngx.raw_set(
        "cookie_time",
        function(lua, "cookie_time", |_, seconds: f64| {
            let date = httpdate::fmt_http_date(at(seconds)?);
            // `Fri, 27 Nov 2026 20:26:56 GMT`: dashes, and two digits of the years that 32 bits reach.
            let short = date.get(12..16).is_some_and(|year| year <= "2037");
            let year = date.get(if short { 14..16 } else { 12..16 }).unwrap_or_default();
            Ok(format!(
                "{}-{}-{year}{}",
                date.get(..7).unwrap_or_default(),
                date.get(8..11).unwrap_or_default(),
                date.get(16..).unwrap_or_default()
            ))
        })?,
    )?;
    ngx.raw_set(
        "parse_http_time",
        function(lua, "parse_http_time", |_, text: LuaString| {
            let date = text.to_str().ok().and_then(|text| httpdate::parse_http_date(&text).ok());
            Ok(date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs()))
        })?,
    )
}

fn at(seconds: f64) -> Result<SystemTime> {
    if !(0.0..=LAST).contains(&seconds) {
        return Err(Error::runtime("time is outside of the years 1970 to 9999"));
    }
    Ok(UNIX_EPOCH + Duration::from_secs(seconds as u64))
}
