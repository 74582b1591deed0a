//! Templates, cut into tokens.

use std::sync::Arc;

use model::Invalid;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Text(Arc<[u8]>),
    /// `{{` or `{*`.
    Out(bool),
    /// The end of an output.
    End,
    Name(Arc<str>),
    Number(f64),
    String(Arc<[u8]>),
    Sign(&'static str),
    Over,
}

/// Operators and the like, the longer ones first.
const SIGNS: [&str; 25] = [
    "..", "==", "~=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "^", "#", "(", ")", "{", "}", "[",
    "]", ";", ":", ",", ".",
];

pub(super) const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Cuts a template into tokens, each with its line.
pub(super) fn tokens(text: &[u8]) -> Result<Vec<(Token, usize)>, Invalid> {
    let mut all = Vec::new();
    let (mut at, mut plain, mut line) = (0, Vec::new(), 1);
    // Tags that nothing closes from here on. Without it, a text of opening tags would be searched again from each.
    let mut unclosed: Vec<u8> = Vec::new();
    while at < text.len() {
        let rest = &text[at..];
        let tag = match rest {
            [b'{', kind @ (b'{' | b'*' | b'%' | b'#' | b'(' | b'['), ..] => *kind,
            _ => 0,
        };
        // `{(` and `{[` include another one where they close.
        let close: &[u8] = match tag {
            b'{' => b"}}",
            b'*' => b"*}",
            b'%' => b"%}",
            b'#' => b"#}",
            b'(' => b")}",
            b'[' => b"]}",
            _ => b"",
        };
        let may_close = tag != 0 && !unclosed.contains(&tag);
        let end = may_close.then(|| find(&rest[2..], close)).flatten();
        if may_close && end.is_none() {
            unclosed.push(tag);
        }
        let Some(end) = end else {
            line += usize::from(text[at] == b'\n');
            plain.push(text[at]);
            at += 1;
            continue;
        };
        let inner = &rest[2..2 + end];
        let mut after = at + end + 4;
        if plain.last() == Some(&b'\\') {
            // A tag that is meant as it stands.
            plain.pop();
            plain.extend_from_slice(&text[at..after]);
            line += lines(&text[at..after]);
            at = after;
            continue;
        }
        if matches!(tag, b'(' | b'[') {
            return Err(error(line, "templates cannot include others"));
        }
        if !plain.is_empty() {
            all.push((Token::Text(std::mem::take(&mut plain).into()), line));
        }
        match tag {
            b'{' | b'*' => {
                all.push((Token::Out(tag == b'{'), line));
                code(inner, line, &mut all)?;
                all.push((Token::End, line));
            }
            b'%' => code(inner, line, &mut all)?,
            _ => {}
        }
        // As there, the line that a statement or a comment ends is not written.
        if matches!(tag, b'%' | b'#') && text.get(after) == Some(&b'\n') {
            after += 1;
        }
        line += lines(&text[at..after]);
        at = after;
    }
    if !plain.is_empty() {
        all.push((Token::Text(plain.into()), line));
    }
    all.push((Token::Over, line));
    Ok(all)
}

fn lines(text: &[u8]) -> usize {
    text.iter().filter(|&&byte| byte == b'\n').count()
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The tokens of Lua.
fn code(text: &[u8], mut line: usize, all: &mut Vec<(Token, usize)>) -> Result<(), Invalid> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        if byte.is_ascii_whitespace() {
            line += usize::from(byte == b'\n');
            at += 1;
        } else if rest.starts_with(b"--") {
            at += find(rest, b"\n").unwrap_or(rest.len());
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let length =
                rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
            all.push((Token::Name(String::from_utf8_lossy(&rest[..length]).into()), line));
            at += length;
        } else if byte.is_ascii_digit() {
            let length =
                rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'.').count();
            // `1..x` is a number and two dots.
            let length = find(&rest[..length], b"..").unwrap_or(length);
            let digits = std::str::from_utf8(&rest[..length]).unwrap_or_default();
            let hex =
                digits.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()).map(|n| n as f64);
            let number = hex.or_else(|| digits.parse().ok());
            all.push((
                Token::Number(number.ok_or_else(|| error(line, format!("`{digits}` is no number")))?),
                line,
            ));
            at += length;
        } else if byte == b'"' || byte == b'\'' {
            let (string, length) = string(rest).map_err(|words| error(line, words))?;
            all.push((Token::String(string.into()), line));
            line += lines(&rest[..length]);
            at += length;
        } else if rest.starts_with(b"[[") {
            let end = find(&rest[2..], b"]]").ok_or_else(|| error(line, "a text has no end"))?;
            let inner = &rest[2..2 + end];
            all.push((Token::String(inner.strip_prefix(b"\n").unwrap_or(inner).into()), line));
            line += lines(inner);
            at += end + 4;
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign.as_bytes()));
            let sign = sign.ok_or_else(|| error(line, format!("`{}`", char::from(byte))))?;
            all.push((Token::Sign(sign), line));
            at += sign.len();
        }
    }
    Ok(())
}

/// A quoted text, and its length with the quotes.
fn string(text: &[u8]) -> Result<(Vec<u8>, usize), &'static str> {
    let quote = text[0];
    let (mut out, mut at) = (Vec::new(), 1);
    loop {
        match *text.get(at).ok_or("a text has no end")? {
            byte if byte == quote => return Ok((out, at + 1)),
            b'\\' => {
                let escaped = *text.get(at + 1).ok_or("a text has no end")?;
                at += 2;
                match escaped {
                    b'n' => out.push(b'\n'),
                    b't' => out.push(b'\t'),
                    b'r' => out.push(b'\r'),
                    b'0'..=b'9' => {
                        let digits: Vec<u8> =
                            text[at - 1..].iter().copied().take(3).take_while(u8::is_ascii_digit).collect();
                        let code = digits.iter().fold(0u32, |all, digit| all * 10 + u32::from(digit - b'0'));
                        out.push(u8::try_from(code).map_err(|_| "an escape is beyond 255")?);
                        at += digits.len() - 1;
                    }
                    b'"' | b'\'' | b'\\' | b'\n' => out.push(escaped),
                    _ => return Err("an escape is not known"),
                }
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

/// Returns the error for a part that is not understood, with its line.
pub(super) fn error(line: usize, words: impl AsRef<str>) -> Invalid {
    Invalid::new(format!("the template is not understood in line {line}: {}", words.as_ref()))
        .hint("of Lua, templates may use if, for, local, assignments and expressions")
}
