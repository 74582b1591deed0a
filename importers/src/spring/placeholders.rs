//! `${NAME:default}` in values, nested to any depth.

/// A value that refers to itself is cut here.
const MAX_DEPTH: usize = 16;
/// Values that double with each variable are cut here.
const MAX_LENGTH: usize = 1 << 20;

/// A text with its variables replaced.
///
/// # Errors
/// The name of a variable without a value and without a default.
pub fn replace(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    inner(text, lookup, 0)
}

fn inner(text: &str, lookup: &dyn Fn(&str) -> Option<String>, depth: usize) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let body = &rest[at + 2..];
        let Some(end) = closing(body) else { break };
        let (name, default) = split(&body[..end]);
        if depth >= MAX_DEPTH || out.len() > MAX_LENGTH {
            return Err(name.to_owned());
        }
        let name = inner(name, lookup, depth + 1)?;
        let value = lookup(name.trim());
        match (value, default) {
            (Some(value), _) => out.push_str(&inner(&value, lookup, depth + 1)?),
            (None, Some(default)) => out.push_str(&inner(default, lookup, depth + 1)?),
            (None, None) => return Err(name),
        }
        rest = &body[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The offset of the brace that closes a variable, past those of variables within it.
fn closing(body: &str) -> Option<usize> {
    let mut depth = 0usize;
    let bytes = body.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if at > 0 && bytes[at - 1] == b'$' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Name and default, at the first colon outside of a variable.
fn split(body: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => return (&body[..at], Some(&body[at + 1..])),
            _ => {}
        }
    }
    (body, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let lookup = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "B" => Some("${A}".to_owned()),
            "SELF" => Some("${SELF}".to_owned()),
            "TWICE" => Some("${TWICE}${TWICE}".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("x${A}y", Ok("x1y")),
            ("${B}", Ok("1")),
            ("${C:http://h:8}", Ok("http://h:8")),
            ("${C:${D:${A}}}", Ok("1")),
            ("${C:}", Ok("")),
            ("$\\{A}", Ok("$\\{A}")),
            ("${A", Ok("${A")),
            ("${C}", Err("C")),
            ("${SELF}", Err("SELF")),
            ("${TWICE}", Err("TWICE")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(replace(text, &lookup), expected, "{text}");
        }
    }
}
