//! hot path
//!
//! Lists of patterns of which one is enough, as uri-blocker and ua-restriction have them.

use model::Invalid;
use sdk::Undecidable;
use sdk::pattern::{Pattern, Searches, StepLimit};

/// A list of patterns. Those whose search is linear are one pattern, so that a long text is read once.
#[derive(Debug)]
pub(crate) struct Rules(Vec<Pattern>);

impl Rules {
    /// # Errors
    /// A pattern that does not compile; the pointer is its index.
    pub(crate) fn compile(rules: &[String], case_insensitive: bool) -> Result<Rules, Invalid> {
        let mut alone = Vec::new();
        let mut linear = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let pattern =
                Pattern::new(rule, case_insensitive).map_err(|error| refused(rule, error).within(index))?;
            if pattern.may_be_spent() { alone.push(pattern) } else { linear.push(pattern) }
        }
        if linear.len() > 1 {
            let parts: Vec<_> = linear.iter().map(|pattern| format!("(?:{})", pattern.as_str())).collect();
            // A rule that cannot stand beside others, for instance one that ends in a comment, fails
            // here, as does a list too long for one pattern: then each is searched for by itself.
            if let Some(joined) =
                Pattern::new(&parts.join("|"), case_insensitive).ok().filter(|joined| !joined.may_be_spent())
            {
                linear = vec![joined];
            }
        }
        linear.extend(alone);
        Ok(Rules(linear))
    }

    /// Whether one of them occurs in the text.
    ///
    /// # Errors
    /// None does as far as that was found out, but one search came to no end.
    #[inline]
    pub(crate) fn judge(&self, text: &[u8], searches: &Searches) -> Result<bool, Undecidable> {
        let mut outcome = Ok(false);
        for pattern in &self.0 {
            match pattern.judge(text, searches) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(StepLimit) => outcome = Err(Undecidable::Spent),
            }
        }
        outcome
    }
}

/// The refusal in the words of APISIX, whose patterns are PCRE's.
fn refused(rule: &str, error: Invalid) -> Invalid {
    let reason = match error.reason.as_str() {
        reason if reason.contains("without closing parenthesis") => "missing )",
        reason => reason.strip_prefix("invalid regex: ").unwrap_or(reason),
    };
    let refused = Invalid::new(format!("pcre_compile() failed: {reason} in \"{rule}\""));
    refused.expected("a regular expression (PCRE)").got(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[&str], case_insensitive: bool) -> Rules {
        let list: Vec<_> = list.iter().map(|&rule| rule.to_owned()).collect();
        Rules::compile(&list, case_insensitive).unwrap()
    }

    #[test]
    fn one_match_is_enough() {
        let list = rules(&["^/a|b$", "(?i)root", r"c(\d)\1", "(?x) x y # a comment"], false);
        for (text, found) in [
            ("/a", true),
            ("/b", true),
            ("/bc", false),
            ("/ROOT.exe", true),
            ("/c11", true),
            ("/c12", false),
            ("/xy", true),
            ("/A", false),
        ] {
            assert_eq!(list.judge(text.as_bytes(), &Searches::default()), Ok(found), "{text}");
        }
        assert_eq!(rules(&["root", "exe"], true).judge(b"/ROOT", &Searches::default()), Ok(true));
        assert_eq!(rules(&[], false).judge(b"/", &Searches::default()), Ok(false));
        assert_eq!(rules(&["a", "b", "c"], false).0.len(), 1);
    }

    #[test]
    fn an_undecided_search_is_neither_yes_nor_no() {
        let list = rules(&[r"^(a|a)*(?=b)\1$", "^b"], false);
        let mut text = vec![b'a'; 4096];
        assert_eq!(list.judge(&text, &Searches::default()), Err(Undecidable::Spent));
        text[0] = b'b';
        assert_eq!(list.judge(&text, &Searches::default()), Ok(true));
    }

    #[test]
    fn what_does_not_compile_is_refused_with_its_place() {
        let list = ["a".to_owned(), ".+(".to_owned()];
        let invalid = Rules::compile(&list, false).unwrap_err();
        assert_eq!(invalid.reason, "pcre_compile() failed: missing ) in \".+(\"");
        assert_eq!(invalid.pointer, "/1");
        let other = Rules::compile(&["[b-a]".to_owned()], false).unwrap_err().reason;
        assert!(other.starts_with("pcre_compile() failed: ") && !other.contains("missing )"), "{other}");
        assert!(!other.contains("invalid regex"), "{other}");
    }
}
