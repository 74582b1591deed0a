//! Patterns for file names, as in a shell: `*`, `?` and `[…]`, which never match a slash or a leading dot.

/// Whether a part of a path has a pattern.
pub fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Whether a pattern matches the whole name.
pub fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where to continue if the part behind the last star does not match: linear in the product of the lengths.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => class(&pattern[p..], name[n]).map(|length| p + length),
            Some(c) if *c == name[n] => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (p, n) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The length of the class that a pattern begins with, if it holds the character. Without an end the bracket stands
/// for itself.
fn class(pattern: &[char], c: char) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let begin = if negated { 2 } else { 1 };
    let end = (begin + 1..pattern.len()).find(|at| pattern[*at] == ']');
    let Some(end) = end else { return (c == '[').then_some(1) };
    let (mut at, mut holds) = (begin, false);
    while at < end {
        if at + 2 < end && pattern[at + 1] == '-' {
            holds |= (pattern[at]..=pattern[at + 2]).contains(&c);
            at += 3;
        } else {
            holds |= pattern[at] == c;
            at += 1;
        }
    }
    (holds != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            ("*.conf", &["a.conf", "a.b.conf"][..], &["a.cnf", ".conf", ".a.conf", "a.conf~"][..]),
            ("*", &["a", "a.b"], &[".a"]),
            (".*", &[".a"], &["a"]),
            ("a?c", &["abc", "aäc"], &["ac", "abbc"]),
            ("[a-c]x[!0-9]", &["axy", "cxz"], &["dxy", "ax1"]),
            ("[]]", &["]"], &["["]),
            ("[a", &["[a"], &["a"]),
            ("a*b*c", &["abc", "aXbXbXc"], &["acb", "abcd"]),
            ("", &[""], &["a"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
        assert!(is_pattern("a[") && !is_pattern("a.conf"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!matches(&format!("{}b", "a*".repeat(200)), &"a".repeat(5000)));
    }
}
