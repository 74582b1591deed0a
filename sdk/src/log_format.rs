//! hot path
//!
//! Lines of an access log, in the format of NGINX's `log_format`.
//!
//! A format is parsed when the configuration is read; writing a line then just iterates over its
//! parts, and needs no memory beyond the line's. The rules are NGINX's: `$name` and `${name}` are
//! variables; an absent one is `-` with the escape `default`, and empty with `json` and `none`.

use model::Invalid;

use crate::escape::{escape_default, escape_json};
use crate::exchange::Exchange;
use crate::vars::{Stamp, Var};

/// How bytes are escaped that could be confused with the line's own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Escape {
    /// `"`, `\` and everything except printable ASCII as `\x0A`.
    #[default]
    Default,
    /// As in a JSON string; invalid UTF-8 becomes U+FFFD, so that the line stays JSON.
    Json,
    /// No escaping. Only for values that clients cannot choose.
    None,
}

/// A parsed format, ready to write lines.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFormat {
    parts: Vec<Part>,
    escape: Escape,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(Box<[u8]>),
    /// A short text, as most texts between two variables are.
    Short([u8; SHORT], usize),
    Var(Var),
}

const SHORT: usize = 4;

impl Part {
    fn text(text: &[u8]) -> Part {
        let mut short = [0; SHORT];
        match short.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text);
                Part::Short(short, text.len())
            }
            None => Part::Text(text.into()),
        }
    }
}

impl LogFormat {
    /// # Errors
    /// A `$` that is not followed by a name.
    pub fn parse(text: &str, escape: Escape) -> Result<LogFormat, Invalid> {
        let text = unquoted(text.trim_end_matches(['\n', '\r']));
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = &text[..];
        while let Some(at) = memchr::memchr(b'$', rest.as_bytes()) {
            let (before, after) = rest.split_at(at);
            literal.extend_from_slice(before.as_bytes());
            let (name, len) = name(&after[1..]).ok_or_else(|| {
                Invalid::new(format!(
                    "`$` is not followed by a name: `{}`",
                    after.chars().take(20).collect::<String>()
                ))
                .expected("`$name` or `${name}`; a name has letters, digits and `_`")
            })?;
            if !literal.is_empty() {
                parts.push(Part::text(&literal));
                literal.clear();
            }
            parts.push(Part::Var(Var::parse(name)));
            rest = &after[1 + len..];
        }
        literal.extend_from_slice(rest.as_bytes());
        literal.push(b'\n');
        parts.push(Part::text(&literal));
        Ok(LogFormat { parts, escape })
    }

    pub fn vars(&self) -> impl Iterator<Item = &Var> {
        self.parts.iter().filter_map(|part| if let Part::Var(var) = part { Some(var) } else { None })
    }

    /// Appends the line of an exchange that has ended, with its line end.
    #[inline]
    pub fn write(&self, x: &Exchange<'_>, stamp: &Stamp, out: &mut Vec<u8>) {
        match self.escape {
            Escape::Default => self.write_with(x, stamp, out, b"-", escape_default),
            Escape::Json => self.write_with(x, stamp, out, b"", escape_json),
            Escape::None => self.write_with(x, stamp, out, b"", |value, out| out.extend_from_slice(value)),
        }
    }

    #[inline]
    fn write_with(
        &self,
        x: &Exchange<'_>,
        stamp: &Stamp,
        out: &mut Vec<u8>,
        absent: &[u8],
        escape: impl Fn(&[u8], &mut Vec<u8>) + Copy,
    ) {
        let refused = x.refused_line().is_some();
        for part in &self.parts {
            match part {
                Part::Short(text, len) => {
                    // Copying the whole array is cheaper than copying just `length` bytes.
                    let end = out.len() + len;
                    out.extend_from_slice(text);
                    out.truncate(end);
                }
                Part::Text(text) => out.extend_from_slice(text),
                Part::Var(var) => {
                    let there = match refused {
                        false => var.write_logged(x, stamp, out, escape),
                        true => var.write_refused(x, stamp, out, escape),
                    };
                    if !there {
                        out.extend_from_slice(absent);
                    }
                }
            }
        }
    }
}

/// Unescapes backslashes as nginx.conf does between quotes, where APISIX puts the format.
fn unquoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some(quoted @ ('"' | '\'' | '\\')) => out.push(quoted),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('n') => out.push('\n'),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// The name after a `$`, and its length in bytes.
fn name(text: &str) -> Option<(&str, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if let Some(inside) = text.strip_prefix('{') {
        let name = &inside[..inside.find('}')?];
        return (!name.is_empty() && name.chars().all(is_part)).then_some((name, name.len() + 2));
    }
    let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Probe, respond};

    fn line(format: &str, escape: Escape, probe: &mut Probe, change: impl Fn(&mut Exchange<'_>)) -> String {
        let format = LogFormat::parse(format, escape).unwrap();
        let mut stamp = Stamp::default();
        stamp.set(1_700_000_000_042);
        let mut x = probe.exchange();
        change(&mut x);
        stamp.set_server(x.upstream_addr());
        let mut out = Vec::new();
        format.write(&x, &stamp, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// APISIX 3.18's default (`apisix/cli/config.lua`).
    const APISIX: &str = r#"$remote_addr - $remote_user [$time_local] $http_host "$request" $status $body_bytes_sent $request_time "$http_referer" "$http_user_agent" $upstream_addr $upstream_status $upstream_response_time "$upstream_scheme://$upstream_host$upstream_uri" "$apisix_request_id""#;

    #[test]
    fn the_default_format_of_apisix() {
        let mut probe = Probe::request(
            "GET",
            "/a?b=c",
            &[("Host", "h:9080"), ("User-Agent", "curl/8"), ("Authorization", "Basic amFjazpzZWNyZXQ=")],
        );
        let id = {
            let format = LogFormat::parse("$apisix_request_id", Escape::Default).unwrap();
            format.vars().all(Var::is_known)
        };
        assert!(id);
        let line = line(APISIX, Escape::Default, &mut probe, |x| {
            x.engine_mut().upstream_addr = Some("10.0.0.2:80".parse().unwrap());
            x.engine_mut().timing.upstream_us = 5_900;
            x.engine_mut().timing.total_us = 1_006_000;
            x.engine_mut().timing.body_sent = 12;
            respond(x, 200, &[]);
        });
        let (front, id) = line.rsplit_once(" \"").unwrap();
        assert_eq!(
            front,
            "127.0.0.1 - jack [14/Nov/2023:22:13:20 +0000] h:9080 \"GET /a?b=c HTTP/1.1\" 200 12 1.006 \"-\" \
             \"curl/8\" 10.0.0.2:80 200 0.005 \"http://h:9080\""
        );
        assert!(id.len() == 34 && id.ends_with("\"\n"), "{id}");
    }

    #[test]
    fn all_contacted_servers_are_logged() {
        use crate::exchange::Try;
        let [first, second] = ["10.0.0.1:80", "10.0.0.2:80"].map(|addr| addr.parse().unwrap());
        let format = "$upstream_addr $upstream_status";
        for (tried, addr, expected) in [
            (vec![first], Some(second), "10.0.0.1:80, 10.0.0.2:80 502, 200\n"),
            (vec![], Some(second), "10.0.0.2:80 200\n"),
            (vec![], None, "- -\n"),
        ] {
            let line = line(format, Escape::Default, &mut Probe::get("/"), |x| {
                let engine = x.engine_mut();
                engine.tried = tried.iter().map(|&addr| Try { addr, status: 502, took_us: 1 }).collect();
                (engine.upstream_addr, engine.upstream_status) = (addr, if addr.is_some() { 200 } else { 0 });
            });
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn a_rejected_request_logs_the_bytes_that_were_read() {
        let mut probe = Probe::get("/");
        let line = line(APISIX, Escape::Default, &mut probe, |x| {
            x.engine_mut().messages.request.clear();
            x.engine_mut().refused = Some(b"\x16\x03\x01 \"a");
            x.engine_mut().messages.response.status = 400;
        });
        assert_eq!(
            line,
            "127.0.0.1 - - [14/Nov/2023:22:13:20 +0000] - \"\\x16\\x03\\x01 \\x22a\" 400 0 0.000 \"-\" \"-\" \
             - - - \"://\" \"\"\n"
        );
    }

    #[test]
    fn a_rejected_request_has_no_request_variables() {
        let mut probe = Probe::get("/");
        let format = "$request_method|$uri|$host|$http_a|$arg_a|$upstream_addr|$remote_port|$msec";
        let line = line(format, Escape::Default, &mut probe, |x| x.engine_mut().refused = Some(b"GET /b"));
        assert_eq!(line, format!("-|-|-|-|-|-|{}|1700000000.042\n", probe.client.peer.port()));
    }

    #[test]
    fn composed_values_are_escaped() {
        // Written, not borrowed: the two fields are joined.
        let mut probe = Probe::request("GET", "/", &[("X-A", "a\"b"), ("X-A", "c")]);
        assert_eq!(line("$http_x_a", Escape::Default, &mut probe, |_| {}), "a\\x22b, c\n");
        // The request line is composed, too.
        let mut probe = Probe::request("GET", "/a\"b", &[]);
        assert_eq!(line("$request", Escape::Default, &mut probe, |_| {}), "GET /a\\x22b HTTP/1.1\n");
    }

    #[test]
    fn values_cannot_close_their_quotes() {
        let evil = "a\"b\\c\t\u{e9}";
        let mut probe = Probe::request("GET", "/", &[("Host", "h"), ("X-A", evil)]);
        for (escape, expected) in [
            (Escape::Default, "a\\x22b\\x5Cc\\x09\\xC3\\xA9 - 14/Nov/2023:22:13:20 +0000\n"),
            (Escape::Json, "a\\\"b\\\\c\\t\u{e9}  14/Nov/2023:22:13:20 +0000\n"),
            (Escape::None, "a\"b\\c\t\u{e9}  14/Nov/2023:22:13:20 +0000\n"),
        ] {
            assert_eq!(line("$http_x_a $http_none $time_local", escape, &mut probe, |_| {}), expected);
        }
    }

    #[test]
    fn formats_parse_as_in_nginx() {
        let mut probe = Probe::get("/a");
        for (format, expected) in [
            ("", "\n"),
            ("plain", "plain\n"),
            ("${uri}x$uri.", "/ax/a.\n"),
            ("\\\"$uri\\\"\\t\\'\\\\\\d\n", "\"/a\"\t'\\\\d\n"),
            (
                "{\"at\": \"$msec\", \"t\": \"$time_iso8601\"}",
                "{\"at\": \"1700000000.042\", \"t\": \"2023-11-14T22:13:20+00:00\"}\n",
            ),
            ("$nothing_such", "-\n"),
        ] {
            assert_eq!(line(format, Escape::Default, &mut probe, |_| {}), expected, "{format}");
        }
        for wrong in ["$", "a $ b", "${}", "${a b}", "${a", "$-"] {
            assert!(LogFormat::parse(wrong, Escape::Default).is_err(), "{wrong}");
        }
        let format = LogFormat::parse("$uri $foo", Escape::Default).unwrap();
        let unknown: Vec<&str> = format.vars().filter(|var| !var.is_known()).map(Var::name).collect();
        assert_eq!(unknown, ["foo"]);
    }
}
