//! Plain English: counts words and sentence openings that readers stumble over.
//!
//! `xtask/words.toml` lists them with a budget for each room. A room above its
//! budget fails; the budgets only fall. Comments, strings and Markdown count,
//! code does not.

use super::source::Source;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The shape of `xtask/words.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// Words and phrases, counted wherever they occur, in any case.
    words: Vec<String>,
    /// Words that must not open a sentence, unless it is a question.
    openings: Vec<String>,
    /// The highest count for each room; `project` is the files at the root.
    budget: BTreeMap<String, usize>,
}

/// One occurrence, as `path:line: word`.
struct Occurrence {
    path: String,
    line: usize,
    word: String,
}

/// Lists the rooms above their budget and notes those that can lower it.
pub fn check(words: &Words, sources: &[Source], documents: &[(String, String)]) -> Vec<String> {
    let mut rooms: BTreeMap<String, Vec<Occurrence>> = BTreeMap::new();
    let texts = sources.iter().map(|source| (&source.path, source.prose()));
    let documents = documents.iter().map(|(path, text)| (path, text.clone()));
    for (path, text) in texts.chain(documents) {
        rooms.entry(room(path)).or_default().extend(words.occurrences(path, &text));
    }
    let mut wrong = Vec::new();
    for (room, found) in &rooms {
        let budget = words.budget.get(room).copied().unwrap_or(0);
        if found.len() > budget {
            let listed: Vec<_> = found.iter().rev().take(5).map(Occurrence::to_string).collect();
            wrong.push(format!(
                "{room}: {} words of xtask/words.toml in comments, strings and documents, budget {budget}; \
                 among them:\n    {}",
                found.len(),
                listed.join("\n    ")
            ));
        } else if found.len() < budget {
            println!("note: lower the budget of {room} in xtask/words.toml from {budget} to {}", found.len());
        }
    }
    wrong
}

impl Words {
    fn occurrences(&self, path: &str, text: &str) -> Vec<Occurrence> {
        let mut found = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            let in_text = self.words.iter().filter(|word| contains_word(&lower, word));
            let opening = self.openings.iter().filter(|word| opens_statement(line, word));
            found.extend(in_text.chain(opening).map(|word| Occurrence {
                path: path.to_owned(),
                line: index + 1,
                word: word.clone(),
            }));
        }
        found
    }
}

impl std::fmt::Display for Occurrence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.word)
    }
}

/// The room a path belongs to: its first folder.
fn room(path: &str) -> String {
    path.split_once('/').map_or("project", |(folder, _)| folder).to_owned()
}

fn contains_word(line: &str, word: &str) -> bool {
    let boundary = |letter: Option<char>| !letter.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        boundary(line[..at].chars().next_back()) && boundary(line[at + word.len()..].chars().next())
    })
}

/// Whether `word` opens a sentence of this line that is not a question.
fn opens_statement(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let starts = before.chars().all(|c| !c.is_alphanumeric()) || before.ends_with(". ");
        let sentence = after.split(". ").next().unwrap_or(after);
        starts && after.starts_with(' ') && !sentence.contains('?')
    })
}

#[cfg(test)]
mod tests {
    use super::{Words, check, contains_word, opens_statement};
    use crate::tidy::source::Source;

    #[test]
    fn whole_words_count_and_parts_of_words_do_not() {
        assert!(contains_word("a foo bar", "foo"));
        assert!(!contains_word("food, foo_bar", "foo"));
    }

    #[test]
    fn statements_count_and_questions_do_not() {
        assert!(opens_statement("/// Which a node holds.", "Which"));
        assert!(opens_statement("Done. Whose turn waits.", "Whose"));
        assert!(!opens_statement("## Which is it?", "Which"));
        assert!(!opens_statement("say Which it is", "Which"));
        assert!(!opens_statement("/// Whichever", "Which"));
    }

    #[test]
    fn a_room_above_its_budget_is_reported_and_code_is_not_counted() {
        let words: Words = toml::from_str("words = ['foo']\nopenings = ['What']\n[budget]\na = 1\n").unwrap();
        let source = |text: &str| vec![Source::new("a/src/lib.rs".into(), text.into())];
        assert!(check(&words, &source("// foo\nfn foo() {}\n"), &[]).is_empty());
        let wrong = check(&words, &source("// foo\nlet x = \"foo\";\n"), &[]);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains("a/src/lib.rs:2: foo"), "{}", wrong[0]);
        let documents = vec![("README.md".to_owned(), "What it is.".to_owned())];
        assert!(check(&words, &source(""), &documents)[0].starts_with("project: 1 "));
    }
}
