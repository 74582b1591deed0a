//! Secrets in a line of a configuration that is shown to people: their characters are replaced, so that
//! everything else stays where it is.
//!
//! It looks at the line alone, as a text that could not be read has no structure. Secrets that it does not recognise
//! are shown.

/// Replaces each character of a secret.
const MASK: char = '*';

/// Endings of names whose values are secrets.
const SECRETS: [&str; 12] = [
    "api_key",
    "apikey",
    "authorization",
    "hmac_key",
    "keyring",
    "passphrase",
    "password",
    "private_key",
    "secret",
    "secret_access_key",
    "secret_key",
    "token",
];

/// Where these words stand, in the line or in the pointer to what it is about, `key` and `keys` are secrets
/// as well; elsewhere they say what is counted or hashed.
const KEY_HOLDERS: [&str; 5] = ["admin_key", "csrf", "key-auth", "/ssls", "ssls:"];

/// A line of at least this many characters, all of them base64, is part of a key.
const BASE64_LINE: usize = 40;

/// The line with its secrets covered. `pointer` leads to what it is about.
pub fn concealed(line: &str, pointer: &str) -> String {
    let chars: Vec<char> = line.chars().collect();
    let keys_too = KEY_HOLDERS.iter().any(|word| line.contains(word) || pointer.contains(word));
    let mut out = chars.clone();
    if is_base64(line.trim()) {
        cover(&mut out, 0..chars.len());
    }
    for at in (2..chars.len()).filter(|at| chars[at - 2..=*at] == [':', '/', '/']) {
        cover(&mut out, password_behind(&chars, at + 1));
    }
    for (at, _) in chars.iter().enumerate().filter(|(_, c)| matches!(c, ':' | '=')) {
        let value = value_behind(&chars, at + 1);
        let text: String = chars[value.clone()].iter().collect();
        let is_secret = text.contains("PRIVATE KEY") || is_secret_name(&name_before(&chars, at), keys_too);
        // A reference is no secret itself, and a map has names of its own.
        if is_secret && !text.starts_with(['$', '{', '|', '>']) {
            cover(&mut out, value);
        }
    }
    out.into_iter().collect()
}

fn is_secret_name(name: &str, keys_too: bool) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRETS.iter().any(|end| name.ends_with(end)) || keys_too && matches!(&*name, "key" | "keys")
}

fn is_base64(text: &str) -> bool {
    let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    text.len() >= BASE64_LINE && text.chars().all(base64)
}

/// The name that ends before `end`, without its quotes.
fn name_before(chars: &[char], end: usize) -> String {
    let of_name = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let before = chars[..end].iter().rev().skip_while(|c| matches!(c, '"' | '\'' | ' '));
    let mut name: Vec<char> = before.take_while(|c| of_name(c)).copied().collect();
    name.reverse();
    name.into_iter().collect()
}

/// The characters of the value that begins at `start` or behind blanks, without its quotes.
fn value_behind(chars: &[char], start: usize) -> std::ops::Range<usize> {
    let blanks = chars[start..].iter().take_while(|c| c.is_whitespace()).count();
    let start = start + blanks;
    let rest = &chars[start..];
    let (lead, end) = match rest.first() {
        Some(quote @ ('"' | '\'')) => (1, closing(&rest[1..], *quote).map(|at| at + 1)),
        Some('[') => (1, rest.iter().position(|c| *c == ']')),
        _ => (0, rest.iter().position(|c| matches!(c, ',' | ']' | '}'))),
    };
    start + lead..start + end.unwrap_or(rest.len())
}

/// Returns the range of the password behind the `://` of a URL; empty without a password.
fn password_behind(chars: &[char], start: usize) -> std::ops::Range<usize> {
    let ends = |c: &char| matches!(c, '/' | '"' | '\'' | ',' | '}' | ']') || c.is_whitespace();
    let len = chars[start..].iter().position(ends).unwrap_or(chars.len() - start);
    let authority = &chars[start..start + len];
    let host = authority.iter().rposition(|c| *c == '@');
    match host.and_then(|host| Some((authority[..host].iter().position(|c| *c == ':')?, host))) {
        Some((user, host)) => start + user + 1..start + host,
        None => start..start,
    }
}

/// Where a text in quotes ends; a backslash or a second quote keeps it going.
fn closing(text: &[char], quote: char) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            '\\' if quote == '"' => at += 1,
            c if c == quote && quote == '\'' && text.get(at + 1) == Some(&quote) => at += 1,
            c if c == quote => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

fn cover(chars: &mut [char], range: std::ops::Range<usize>) {
    let end = range.end.min(chars.len());
    if let Some(chars) = chars.get_mut(range.start..end) {
        chars.iter_mut().filter(|c| !c.is_whitespace()).for_each(|c| *c = MASK);
    }
}

#[cfg(test)]
mod tests {
    use super::concealed;

    #[test]
    fn secrets_are_covered_and_nothing_else() {
        for (line, shown) in [
            (
                "{username: jack, plugins: {jwt-auth: {key: jack, secret: hidden value}}, grup_id: x}",
                "{username: jack, plugins: {jwt-auth: {key: jack, secret: ****** *****}}, grup_id: x}",
            ),
            ("  key-auth: {key: 1234567, header: x}", "  key-auth: {key: *******, header: x}"),
            (r#"{"key-auth": {"key": "a\"b, c"}}"#, r#"{"key-auth": {"key": "***** *"}}"#),
            (
                "  - {name: admin, key: 'it''s', admin_key: 1}",
                "  - {name: admin, key: '*****', admin_key: 1}",
            ),
            ("limit-count: {key: remote_addr, count: 1}", "limit-count: {key: remote_addr, count: 1}"),
            ("redis_password: foobar # old", "redis_password: ****** * ***"),
            ("password: $env://PASSWORD", "password: $env://PASSWORD"),
            ("password: ${{PASSWORD}}", "password: ${{PASSWORD}}"),
            ("secret:", "secret:"),
            ("keyring: [abc, def]", "keyring: [**** ***]"),
            (r#"token: "open"#, r#"token: "****"#),
            ("X-Vault-Token: abc", "X-Vault-Token: ***"),
            ("cert: -----BEGIN PRIVATE KEY----- abc", "cert: ********** ******* ******** ***"),
            ("cert: -----BEGIN CERTIFICATE----- abc", "cert: -----BEGIN CERTIFICATE----- abc"),
            ("hide_credentials: yes please", "hide_credentials: yes please"),
            ("token_uri: http://a", "token_uri: http://a"),
            ("host: [http://a:b:c@d, http://e:80/f@g]", "host: [http://a:***@d, http://e:80/f@g]"),
            ("uri: 'https://a@b'", "uri: 'https://a@b'"),
            ("uri: https://user:pass@host.example", "uri: https://user:****@host.example"),
            ("desc: mail a:b@c.example", "desc: mail a:b@c.example"),
            (r#"secret: 'it\'s"#, r#"secret: '***'s"#),
        ] {
            assert_eq!(concealed(line, "/routes/0"), shown);
        }
        let base64 = format!("   {}==", "aB1/".repeat(16));
        assert_eq!(concealed(&base64, "").trim(), "*".repeat(66));
        assert_eq!(concealed("nodes: 127.0.0.1:1980", ""), "nodes: 127.0.0.1:1980");
    }

    #[test]
    fn the_place_says_whether_a_key_is_a_secret() {
        for (pointer, shown) in [
            ("/consumers/0/plugins/key-auth/key", "key: *****"),
            ("/ssls/0/key", "key: *****"),
            ("/deployment/admin/admin_key/0/key", "key: *****"),
            ("/upstreams/0/key", "key: 12345"),
        ] {
            assert_eq!(concealed("key: 12345", pointer), shown);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_line_keeps_its_length(line in ".{0,80}", pointer in "[a-z/]{0,10}") {
            let shown = concealed(&line, &pointer);
            proptest::prop_assert_eq!(shown.chars().count(), line.chars().count());
        }
    }
}
