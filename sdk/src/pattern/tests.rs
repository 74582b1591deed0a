use model::lookaround::{ANYWHERE, AT_BEGIN, BACK_AND_FORTH};

use super::*;

#[test]
fn patterns_match_as_in_pcre() {
    for (pattern, insensitive, text, expected) in [
        ("^/a/", false, "/a/b", true),
        (r"\/iphone\/", false, "x/iphone/", true),
        ("[a-z]+", false, "ABC", false),
        ("[a-z]+", true, "ABC", true),
        ("(?i)abc", false, "ABC", true),
        (r"^(?!/public).*$", false, "/public/x", false),
        (r"^(?!/public).*$", false, "/private", true),
        (r"(a+)b\1", false, "aabaa", true),
        (r"(?<=x)y", false, "xy", true),
        (r"(?>a+)b", false, "aab", true),
        ("é", false, "café", true),
        ("", false, "", true),
    ] {
        let pattern = Pattern::new(pattern, insensitive).unwrap();
        assert_eq!(pattern.is_match(text.as_bytes()), expected, "{pattern:?} in {text}");
    }
    assert!(Pattern::new("^.b$", false).unwrap().is_match(b"\xffb"));
    assert!(Pattern::new("^(?!a).b$", false).unwrap().is_match(b"\xffb"));
    assert!(Pattern::new("(", false).unwrap_err().reason.starts_with("invalid regex"));
}

#[test]
fn hostile_patterns_are_rejected_or_bounded() {
    assert!(Pattern::new(r"(\w{1,1000}){1,1000}", false).is_err());
    let pattern = Pattern::new(r"^(a|a)*(?=b)\1$", false).unwrap();
    let text = vec![b'a'; 4096];
    assert!(pattern.may_be_spent());
    assert_eq!(pattern.judge(&text, &Searches::default()), Err(StepLimit));
    assert!(!pattern.is_match(&text));
    assert_eq!(pattern.captures(&text, &Searches::default()).err(), Some(StepLimit));
}

#[test]
fn backtracking_searches_of_long_texts_are_undecided() {
    let text = vec![b'a'; AT_BEGIN + 1];
    for (pattern, long) in
        [("a+$", Ok(true)), ("^b", Ok(false)), ("^(?=a)a", Err(StepLimit)), ("(?!a)a", Err(StepLimit))]
    {
        let pattern = Pattern::new(pattern, false).unwrap();
        assert_eq!(pattern.judge(&text, &Searches::default()), long, "{pattern:?}");
    }
    for (pattern, longest) in [
        ("^(?=a)a", AT_BEGIN),
        ("(?=a)a", ANYWHERE),
        ("^.*(?!b).*a", ANYWHERE),
        (".*(?!b).*a", BACK_AND_FORTH),
    ] {
        let pattern = Pattern::new(pattern, false).unwrap();
        let judged =
            [longest, longest + 1].map(|length| pattern.judge(&text[..length], &Searches::default()));
        assert_eq!(judged, [Ok(true), Err(StepLimit)], "{pattern:?}");
        let found =
            |length| pattern.captures(&text[..length], &Searches::default()).map(|found| found.is_some());
        assert_eq!([longest, longest + 1].map(found), judged, "{pattern:?}");
    }
}

#[test]
fn searches_of_one_exchange_share_a_budget() {
    let searched = |pattern: &str, length: usize| {
        let (pattern, text) = (Pattern::new(pattern, false).unwrap(), vec![b'a'; length]);
        let searches = Searches::default();
        let judged = (0..2000).take_while(|_| pattern.judge(&text, &searches).is_ok()).count();
        let searches = Searches::default();
        let captured = (0..2000).take_while(|_| pattern.captures(&text, &searches).is_ok()).count();
        assert_eq!(judged, captured, "{pattern:?}");
        judged
    };
    for (pattern, longest) in [("(?=a)a", ANYWHERE), (".*(?!b).*a", BACK_AND_FORTH)] {
        assert_eq!(searched(pattern, longest), 4, "{pattern}");
        assert!((5..100).contains(&searched(pattern, longest / 2)), "{pattern}");
        assert_eq!(searched(pattern, 100), 2000, "{pattern}");
    }
    assert_eq!(searched("^(?=a)a", AT_BEGIN), 256);
    assert_eq!(searched(r"^(\w+\s?)*(?<!x)$", 11), 2000);
    assert_eq!(searched(r"^(\w+\s?)*(?<!x)$", 12), 160);
    // A search that is linear in the text costs nothing.
    assert_eq!(searched("a+$", 5000), 2000);
}

#[test]
fn only_backtracking_patterns_may_be_spent() {
    for (pattern, may) in [("a(b|c)*$", false), ("a(?=b)", true), (r"(a)\1", true)] {
        let compiled = Pattern::new(pattern, false).unwrap();
        assert_eq!((compiled.may_be_spent(), compiled.as_str()), (may, pattern));
    }
}

#[test]
fn matches_have_groups_and_are_replaced() {
    for pattern in ["(b)(x)?c", "(b)(x)?(?=c)c"] {
        let pattern = Pattern::new(pattern, false).unwrap();
        let captures = pattern.captures(b"abcd", &Searches::default()).unwrap().unwrap();
        assert_eq!(captures.count(), 3, "{pattern:?}");
        let groups = [0, 1, 2, 3].map(|index| captures.group(index));
        assert_eq!(groups, [Some(b"bc".as_slice()), Some(b"b"), None, None], "{pattern:?}");
        let mut out = b"/".to_vec();
        captures.replace(&Replacement::parse("<$1$2>").unwrap(), &mut out);
        assert_eq!(out, b"/a<b>d", "{pattern:?}");
    }
}

#[test]
fn replacements_refer_to_groups() {
    for bad in ["$", "$x", "${1", "${x}", "a$", "$99999999999999999999"] {
        assert!(Replacement::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(Replacement::parse("$1$7").unwrap().max_group(), Some(7));
}
