//! The charset in a media type.

/// Prefixes of encodings in which ASCII bytes are exactly the ASCII characters.
const ASCII: [&[u8]; 12] = [
    b"utf-8",
    b"utf8",
    b"us-ascii",
    b"ascii",
    b"iso-8859-",
    b"iso8859-",
    b"iso_8859-",
    b"latin",
    b"windows-125",
    b"cp125",
    b"koi8-",
    b"tis-620",
];

/// In these encodings a second byte may be a letter or a quote, but never a delimiter of a form.
const OF_FORMS: [&[u8]; 9] =
    [b"gbk", b"gb2312", b"gb18030", b"big5", b"euc-", b"shift_jis", b"shift-jis", b"sjis", b"windows-31j"];

const WORD: &[u8] = b"charset";

/// Whether an ASCII name or value reads the same for servers that honour this media type's charset
/// as for those that ignore it. In UTF-7, UTF-16 or EBCDIC, other bytes encode the same text. The
/// parameter is searched anywhere, as servers disagree about where parameters begin.
pub(super) fn reads_as_ascii(kind: &[u8], form: bool) -> bool {
    let mut rest = kind;
    while let Some(at) = rest.windows(WORD.len()).position(|part| part.eq_ignore_ascii_case(WORD)) {
        rest = rest[at + WORD.len()..].trim_ascii_start();
        let value = match rest.first() {
            Some(b'=') => rest[1..].trim_ascii_start(),
            // In extended notation (RFC 2231).
            Some(b'*') => return false,
            _ => continue,
        };
        let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
        let end = value.iter().position(|byte| matches!(byte, b';' | b',' | b'"' | b'\'' | b' ' | b'\t'));
        let value = &value[..end.unwrap_or(value.len())];
        let among = |names: &[&[u8]]| {
            names.iter().any(|name| value.get(..name.len()).is_some_and(|v| v.eq_ignore_ascii_case(name)))
        };
        let as_ascii = value.is_empty() || among(&ASCII) || form && among(&OF_FORMS);
        if !as_ascii {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_charsets_are_recognised() {
        for (kind, json, form) in [
            ("a/b", true, true),
            ("a/b; charset", true, true),
            ("a/b; charset=", true, true),
            ("a/b; charset=UTF-8", true, true),
            ("a/b; Charset = \"iso-8859-15\"; x=y", true, true),
            ("a/b;charset=windows-1252", true, true),
            ("a/b; charset=GBK", false, true),
            ("a/b; charset=Shift_JIS", false, true),
            ("a/b; charset=utf-7", false, false),
            ("a/b; charset=\"utf-16le\"", false, false),
            ("a/b; charset='ibm037'", false, false),
            ("a/b; charset=utf-8; charset=ibm037", false, false),
            ("a/b; charset*=utf-8''ibm037", false, false),
            ("a/b charset=ibm037", false, false),
        ] {
            let actual = [false, true].map(|form| reads_as_ascii(kind.as_bytes(), form));
            assert_eq!(actual, [json, form], "{kind}");
        }
    }
}
