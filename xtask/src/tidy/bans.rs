//! Words that may not stand where they stand, and module docs that are missing.

use super::rules::Rules;
use super::source::Source;

/// Marks of unfinished work, looked for in comments too. Spelt in halves so
/// that this line is not one of them.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub fn check(rules: &Rules, source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    if !source.path.ends_with("/tests.rs") && !source.has_module_doc() {
        wrong.push(format!(
            "{}: no module documentation (`//! what this is, what it never does`)",
            source.path
        ));
    }
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(word) = UNFINISHED.iter().find(|word| has_word(line, word)) {
            wrong.push(format!("{}:{number}: {word}: finish it or write an issue", source.path));
        }
    }
    let bans = rules.ban.iter().filter(|ban| ban.covers(&source.path));
    for ban in bans {
        for (number, line) in (1..).zip(source.code.lines()).take(source.production_lines) {
            if let Some(word) = ban.words.iter().find(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{number}: `{word}`: {}", source.path, ban.reason));
            }
        }
    }
    wrong
}

fn has_word(line: &str, word: &str) -> bool {
    let part_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_of_name) && !line[at + word.len()..].starts_with(part_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::check;
    use crate::tidy::rules::Rules;

    fn found(path: &str, text: &str) -> usize {
        let rules: Rules = toml::from_str(
            r#"
            [room]
            [files]
            warn = 1
            fail = 2
            [circles]
            most = 8
            [[ban]]
            words = ["tokio::"]
            in = ["proxy/src/"]
            except = ["proxy/src/rt/"]
            reason = "one seam"
            "#,
        )
        .expect("the rules above are valid");
        check(&rules, &Source::new(path.into(), text.into())).len()
    }

    #[test]
    fn a_ban_holds_in_its_folder_outside_comments_texts_and_tests() {
        assert_eq!(found("proxy/src/a.rs", "//! doc\nuse tokio::net;\n"), 1);
        assert_eq!(found("proxy/src/rt/a.rs", "//! doc\nuse tokio::net;\n"), 0);
        assert_eq!(found("proxy/src/a.rs", "//! doc tokio::x\nlet a = \"tokio::\";\n"), 0);
        assert_eq!(found("proxy/src/a.rs", "//! doc\n#[cfg(test)]\nmod tests { use tokio::net; }\n"), 0);
    }

    #[test]
    fn a_missing_module_doc_and_unfinished_marks_are_found() {
        assert_eq!(found("a.rs", "fn a() {}\n"), 1);
        assert_eq!(found("a.rs", concat!("//! doc\n// TO", "DO later\n")), 1);
    }
}
