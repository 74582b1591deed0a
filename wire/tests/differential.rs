//! The codec agrees with two other parsers: on a corpus, on mutations of it, and on generated
//! messages. `cargo run --release -p wire --example mutate -- 10000000` does more.

use crate::support::compare::{self, Verdict};
use crate::support::corpus::{CHUNKED, PATHS, REQUESTS, RESPONSES, WORDS};
use crate::support::mutate::{Random, mutate};
use crate::support::written_again;
use proptest::prelude::*;
use wire::Method;

fn show(input: &[u8]) -> String {
    input.escape_ascii().to_string()
}

#[test]
fn parsers_agree_on_the_corpus() {
    for input in REQUESTS {
        for cut in 0..=input.len() {
            let verdict = compare::requests(input, cut);
            assert_eq!(verdict, Ok(Verdict::Read), "{}", show(input));
        }
    }
    for input in REQUESTS {
        written_again::check(input);
    }
    for input in RESPONSES {
        for method in [Method::Get, Method::Head, Method::Connect] {
            let verdict = compare::responses(input, input.len() / 2, method).unwrap();
            // One of them has a disguised Content-Length.
            assert_eq!(verdict == Verdict::Read, !show(input).contains("_Length"), "{}", show(input));
        }
    }
    for input in CHUNKED {
        for step in 1..=input.len() {
            compare::chunked(input, step).unwrap_or_else(|e| panic!("{}: {e}", show(input)));
        }
    }
    for input in PATHS {
        compare::paths(input).unwrap_or_else(|e| panic!("{}: {e}", show(input)));
    }
}

#[test]
fn parsers_agree_on_mutations() {
    let mut random = Random::new(1);
    let (mut read, mut refused) = (0, 0);
    for round in 0..40_000 {
        let mut input = REQUESTS[round % REQUESTS.len()].to_vec();
        mutate(&mut random, &mut input, REQUESTS, WORDS);
        let cut = random.below(input.len() + 1);
        match compare::requests(&input, cut) {
            Ok(Verdict::Read) => read += 1,
            Ok(Verdict::More) => {}
            Ok(Verdict::Refused(_)) => refused += 1,
            Err(e) => panic!("{}: {e}", show(&input)),
        }
    }
    // The mutations are useful only if they hit both outcomes.
    assert!(read > 4_000 && refused > 4_000, "{read} read, {refused} refused");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generated_requests(
        method in "(GET|POST|OPTIONS|CONNECT|[A-Z!a-z]{1,5})",
        target in "(/|\\*|http://a|[!-~]{0,3})[!-~]{0,12}",
        fields in prop::collection::vec(("(Host|Content-Length|Transfer-Encoding|Expect|Connection|[!-~]{1,4})",
            "[ \t]{0,2}(a|5|chunked|100-continue|close|[ -~\u{80}-\u{ff}\t]{0,6})[ \t]{0,2}"), 0..5),
        version in "(1.1|1.1|1.0|[0-9].[0-9])",
        cut in 0usize..200,
    ) {
        let mut input = format!("{method} {target} HTTP/{version}\r\n");
        for (name, value) in fields {
            input.push_str(&format!("{name}:{value}\r\n"));
        }
        input.push_str("\r\n");
        let cut = cut.min(input.len());
        let verdict = compare::requests(input.as_bytes(), cut);
        prop_assert!(verdict.is_ok(), "{:?}: {}", input, verdict.unwrap_err());
    }

    #[test]
    fn generated_chunks(
        chunks in prop::collection::vec((0usize..4, "[;a= \"]{0,3}", prop::collection::vec(any::<u8>(), 1..40)), 0..6),
        trailers in prop::collection::vec(("[a-zA-Z-]{1,12}", "[ -~]{0,8}"), 0..3),
        step in 1usize..60,
    ) {
        let mut input = Vec::new();
        for (zeros, extension, data) in chunks {
            input.extend(format!("{}{:X}{extension}\r\n", "0".repeat(zeros), data.len()).bytes());
            input.extend(data);
            input.extend(b"\r\n");
        }
        input.extend(b"0\r\n");
        for (name, value) in trailers {
            input.extend(format!("{name}: {value}\r\n").bytes());
        }
        input.extend(b"\r\nGET");
        let verdict = compare::chunked(&input, step);
        prop_assert!(verdict.is_ok(), "{}: {}", show(&input), verdict.unwrap_err());
    }

    #[test]
    fn generated_paths(path in "/(\\.|\\.\\.|/|%2[efEF5]|%[0-9a-fA-F]{2}|;|[!-~]|\u{e9}){0,16}") {
        let verdict = compare::paths(path.as_bytes());
        prop_assert!(verdict.is_ok(), "{}: {}", path, verdict.unwrap_err());
    }
}
