//! hot path
//!
//! Which stored response of a key a request selects (RFC 9111 section 4.1).

use wire::Fields;

/// Writes the values of the fields that a response varies on: equal bytes mean that it matches.
///
/// Values are compared as lists: several lines equal one line with commas, and whitespace around
/// commas does not count. Language, coding and charset names are compared without case.
pub fn variant(vary: &[Box<[u8]>], class: u8, request: &Fields, out: &mut Vec<u8>) {
    const WITHOUT_CASE: [&[u8]; 3] = [b"accept-charset", b"accept-encoding", b"accept-language"];
    out.clear();
    out.push(class);
    for name in vary {
        let without_case = WITHOUT_CASE.contains(&&**name);
        for line in request.all(name) {
            for item in members(line) {
                out.extend_from_slice(&(item.len() as u32 + 1).to_le_bytes());
                let from = out.len();
                out.extend_from_slice(item);
                if without_case {
                    out[from..].make_ascii_lowercase();
                }
            }
        }
        out.extend_from_slice(&0u32.to_le_bytes());
    }
}

/// The members of a list, empty ones included: an empty field differs from an absent one. A comma within a quoted
/// string does not separate.
pub fn members(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    line.split(move |&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' => return !quoted,
            _ => {}
        }
        false
    })
    .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, values: &[&str]) -> Vec<u8> {
        let mut fields = Fields::new();
        for value in values {
            fields.append(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let mut out = Vec::new();
        variant(&[name.to_ascii_lowercase().into_bytes().into()], 0, &fields, &mut out);
        out
    }

    #[test]
    fn lists_are_compared_by_their_members() {
        for (left, right, equal) in [
            (&["1, 2"][..], &["1", "2"][..], true),
            (&["1,2"], &[" 1 ,  2 "], true),
            (&["1,2"], &["2,1"], false),
            (&["1,2"], &["12"], false),
            (&["\"1,2\""], &["\"1, 2\""], false),
            (&["\"a\\\",b\""], &["\"a\\\", b\""], false),
            (&["1"], &["1", ""], false),
            (&[""], &[], false),
            (&["a"], &["A"], false),
        ] {
            assert_eq!(of("Foo", left) == of("Foo", right), equal, "{left:?} {right:?}");
        }
        assert_eq!(of("Accept-Language", &["en, DE"]), of("Accept-Language", &["EN,de"]));
        assert_ne!(of("Accept-Language", &["en, de"]), of("Accept-Language", &["de, en"]));
    }

    #[test]
    fn the_members_of_one_field_are_not_those_of_another() {
        let mut fields = Fields::new();
        fields.append(b"B", b"x").unwrap();
        let names = |list: [&str; 2]| list.map(|name| name.as_bytes().into()).to_vec();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        variant(&names(["a", "b"]), 0, &fields, &mut first);
        variant(&names(["b", "c"]), 0, &fields, &mut second);
        assert_ne!(first, second);
    }
}
