//! Tests that foreign protocols are distinguished from malformed HTTP/1.

use super::{first_line, is_foreign};

#[test]
fn foreign_bytes_are_distinguished_from_a_malformed_request() {
    for (head, foreign) in [
        ("INVALID CONNECTION PREFACE\r\n\r\n", true),
        ("A B C\n", true),
        // Not a whole line yet.
        ("A B C", false),
        // A trace of HTTP/1: a method, a target, a version, or another count of words.
        ("GET B C\r\n", false),
        ("A GET C\r\n", false),
        ("A B POST\r\n", false),
        ("A /b C\r\n", false),
        ("A B HTTP/1.1\r\n", false),
        ("A b C\r\n", false),
        ("a B C\r\n", false),
        ("A B\r\n", false),
        ("A  C\r\n", false),
        ("A B C D\r\n", false),
        ("\r\n", false),
        ("", false),
    ] {
        assert_eq!(is_foreign(head.as_bytes()), foreign, "{head:?}");
    }
}

#[test]
fn the_first_line_ends_with_it_or_where_it_is_long_enough() {
    let long = [b'x'; 3000];
    for (head, line) in [
        (&b"GET /\r\nHost: a"[..], &b"GET /"[..]),
        (b"GET /\n", b"GET /"),
        (b"GET", b"GET"),
        (b"\r\n", b""),
        (&long, &long[..2048]),
    ] {
        assert_eq!(first_line(head), line);
    }
}
