//! The named parts of a `multipart/form-data` body (RFC 7578).
//!
//! Strict: a body that servers may split differently is an error.

use memchr::memmem;

use super::charset::reads_as_ascii;
use crate::verdict::Undecidable;

const BROKEN: Undecidable = Undecidable::Unreadable;

/// Calls `each` with every part's name and value, in order, and returns the boundary.
///
/// # Errors
/// Servers would disagree about the parts of the body, or `each` failed.
pub fn parts<'k, 'a>(
    kind: &'k [u8],
    body: &'a [u8],
    mut each: impl FnMut(&[u8], &'a [u8]) -> Result<(), Undecidable>,
) -> Result<&'k [u8], Undecidable> {
    let boundary = parameter(kind, b"boundary")?.filter(|boundary| !boundary.is_empty()).ok_or(BROKEN)?;
    let delimiter = [b"--", boundary].concat();
    let mut from = None;
    let mut closed = false;
    // Whether lines end with CR LF. Parsers that require it ignore a lone LF, so line ends must not
    // be mixed.
    let mut with_cr = None;
    let mut ends = |cr: bool| if *with_cr.get_or_insert(cr) == cr { Ok(()) } else { Err(BROKEN) };
    for mark in memmem::find_iter(body, &delimiter) {
        if mark > 0 && body[mark - 1] != b'\n' {
            // Some parsers accept the first delimiter anywhere.
            if from.is_none() {
                return Err(BROKEN);
            }
            continue;
        }
        // Some parsers continue after the closing delimiter.
        if closed {
            return Err(BROKEN);
        }
        if mark > 0 {
            ends(mark > 1 && body[mark - 2] == b'\r')?;
        }
        if let Some(from) = from {
            let (name, value) = part(&body[from..mark])?;
            each(name, value)?;
        }
        let rest = &body[mark + delimiter.len()..];
        if let Some(rest) = rest.strip_prefix(b"--") {
            // Further text on its line: not the closing delimiter for all parsers.
            let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            if !matches!(&rest[blanks..], [] | [b'\n', ..] | [b'\r', b'\n', ..]) {
                return Err(BROKEN);
            }
            closed = true;
            continue;
        }
        // Blanks, then the end of the line; some parsers take a longer word for another boundary.
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let end = match &rest[blanks..] {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => return Err(BROKEN),
        };
        ends(end == 2)?;
        from = Some(mark + delimiter.len() + blanks + end);
    }
    // The closing delimiter may be missing.
    if closed { Ok(boundary) } else { Err(BROKEN) }
}

/// The name and the value of a part, given the text between two delimiters.
fn part(text: &[u8]) -> Result<(&[u8], &[u8]), Undecidable> {
    let mut rest = text;
    let mut name = None;
    let (mut recoded, mut file) = (false, false);
    loop {
        let end = memchr::memchr(b'\n', rest).ok_or(BROKEN)?;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        let colon = memchr::memchr(b':', line).ok_or(BROKEN)?;
        if line[0].is_ascii_whitespace() {
            return Err(BROKEN);
        }
        let (field, content) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if field.eq_ignore_ascii_case(b"content-transfer-encoding") {
            // Some servers decode it, although RFC 7578 section 4.7 deprecates it.
            let plain: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
            if !plain.iter().any(|plain| content.eq_ignore_ascii_case(plain)) {
                return Err(BROKEN);
            }
        }
        if field.eq_ignore_ascii_case(b"content-type") {
            recoded |= !reads_as_ascii(content, false);
        }
        if field.eq_ignore_ascii_case(b"content-disposition") {
            if name.is_some() {
                return Err(BROKEN);
            }
            name = Some(parameter(content, b"name")?.ok_or(BROKEN)?);
            file = !matches!(parameter(content, b"filename"), Ok(None));
        }
    }
    // The charset of a file is irrelevant: it is not the text of a field.
    if recoded && !file {
        return Err(BROKEN);
    }
    let value = rest.strip_suffix(b"\n").map(|value| value.strip_suffix(b"\r").unwrap_or(value));
    Ok((name.ok_or(BROKEN)?, value.unwrap_or(rest)))
}

/// The value of a parameter after the first `;`.
fn parameter<'a>(text: &'a [u8], wanted: &[u8]) -> Result<Option<&'a [u8]>, Undecidable> {
    let mut found = None;
    let mut rest = &text[memchr::memchr(b';', text).unwrap_or(text.len())..];
    while let Some(after) = rest.strip_prefix(b";") {
        rest = after.trim_ascii_start();
        if rest.is_empty() || rest[0] == b';' {
            continue;
        }
        let equals = memchr::memchr2(b'=', b';', rest).filter(|&at| rest[at] == b'=').ok_or(BROKEN)?;
        let name = rest[..equals].trim_ascii();
        rest = rest[equals + 1..].trim_ascii_start();
        let value;
        (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_text(quoted)?,
            None => {
                let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
                (rest[..end].trim_ascii_end(), &rest[end..])
            }
        };
        rest = rest.trim_ascii_start();
        if !rest.is_empty() && rest[0] != b';' {
            return Err(BROKEN);
        }
        // Extended (RFC 5987), continued (RFC 2231) or repeated: servers disagree about which one
        // applies.
        let plain = name.split(|&byte| byte == b'*').next().unwrap_or(name);
        let extended = plain.len() < name.len() && plain.eq_ignore_ascii_case(wanted);
        let same = name.eq_ignore_ascii_case(wanted);
        if extended || same && found.is_some() {
            return Err(BROKEN);
        }
        if same {
            // Some servers unescape backslashes, some do not.
            if value.contains(&b'\\') {
                return Err(BROKEN);
            }
            found = Some(value);
        }
    }
    Ok(found)
}

/// Splits at the closing quote.
fn quoted_text(text: &[u8]) -> Result<(&[u8], &[u8]), Undecidable> {
    let mut at = 0;
    loop {
        match text.get(at) {
            Some(b'"') => return Ok((&text[..at], &text[at + 1..])),
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return Err(BROKEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, body: &str) -> Result<Vec<(String, String)>, Undecidable> {
        let mut all = Vec::new();
        parts(kind.as_bytes(), body.as_bytes(), |name, value| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            all.push((text(name), text(value)));
            Ok(())
        })?;
        Ok(all)
    }

    fn one(disposition: &str) -> Result<String, Undecidable> {
        let body = format!("--b\r\n{disposition}\r\n\r\nv\r\n--b--");
        found("multipart/form-data; boundary=b", &body).map(|parts| parts[0].0.clone())
    }

    #[test]
    fn parts_have_names_and_values() {
        let kind = "Multipart/Form-Data; charset=utf-8; Boundary=\"x y\"";
        let body = "before\r\n--x y\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n2\r\n--x y \t\r\n\
            content-disposition:form-data;filename=\"; name=z\\\"\"; name=b\r\nContent-Type: x/y\r\n\r\n--x\r\n\
            --x y-- \r\nafter";
        let expected = [("a", "1\r\n2"), ("b", "--x")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(found(kind, body).as_deref(), Ok(&expected[..]));
        let lines = "--b\nContent-Disposition: form-data; name=a\n\n1\n--b--";
        assert_eq!(found("multipart/form-data;boundary=b", lines), Ok(vec![("a".into(), "1".into())]));
        let after_a_line = format!("\n{lines}");
        assert_eq!(
            found("multipart/form-data;boundary=b", &after_a_line),
            Ok(vec![("a".into(), "1".into())])
        );
        let file = "--b\r\nContent-Disposition: form-data; name=a; filename*=utf-8''b\r\n\
            Content-Type: text/csv; charset=utf-16\r\nContent-Transfer-Encoding: 8BIT\r\n\r\n1\r\n--b--";
        assert_eq!(found("multipart/form-data;boundary=b", file), Ok(vec![("a".into(), "1".into())]));
        let empty = "--b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--b--";
        assert_eq!(found("multipart/form-data;boundary=b", empty), Ok(vec![("a".into(), "".into())]));
        assert_eq!(one("Content-Disposition: form-data; NAME = \"n\" ;"), Ok("n".into()));
    }

    #[test]
    fn ambiguous_bodies_are_rejected() {
        let whole = "--b\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--b--";
        for (kind, body) in [
            ("multipart/form-data", whole),
            ("multipart/form-data; boundary=", whole),
            ("multipart/form-data; boundary=\"b", whole),
            ("multipart/form-data; boundary=b; boundary=c", whole),
            ("multipart/form-data; boundary=b", ""),
            ("multipart/form-data; boundary=b", "--b"),
            ("multipart/form-data; boundary=b", &whole[..whole.len() - 2]),
            ("multipart/form-data; boundary=b", &whole.replace("--b--", "--bc\r\n--b--")),
            ("multipart/form-data; boundary=b; boundary*0=c", whole),
            ("multipart/form-data; boundary=b", &format!("x{whole}")),
            ("multipart/form-data; boundary=b", &format!("{whole}x")),
            ("multipart/form-data; boundary=b", &format!("{whole}\r\n{whole}")),
            ("multipart/form-data; boundary=b", &whole.replace("1\r\n", "1\n")),
            ("multipart/form-data; boundary=b", &whole.replacen("b\r\n", "b\n", 1)),
        ] {
            assert_eq!(found(kind, body), Err(Undecidable::Unreadable), "{kind}: {body}");
        }
        for disposition in [
            "X: y",
            "Content-Disposition: form-data",
            "Content-Disposition: form-data; filename=a",
            "Content-Disposition: form-data; name=a; name=b",
            "Content-Disposition: form-data; name=a; name*=utf-8''b",
            "Content-Disposition: form-data; name=x; name*0=a; name*1=b",
            "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: quoted-printable",
            "Content-Disposition: form-data; name=a\r\nContent-Type: text/plain; charset=utf-16",
            "Content-Disposition: form-data; name=\"a\\b\"",
            "Content-Disposition: form-data; name=\"a\"b",
            "Content-Disposition: form-data; name",
            "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
            "Content-Disposition: form-data;\r\n name=a",
            "Content-Disposition: form-data; name=a\r\nno field",
        ] {
            assert_eq!(one(disposition), Err(Undecidable::Unreadable), "{disposition}");
        }
    }
}
