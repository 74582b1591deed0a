//! The text of a path.

use serde_json::Value;

use super::filter::{Filter, Name, Operand, Operator};
use super::{Path, STEPS, Selector, Slice, Step};

const FORM: &str =
    "it must be a JSONPath of names, [number], [start:end], [*], ['name'], ..name and [?(@.name == value)]";

/// Conditions within conditions.
const DEPTH: usize = 16;

pub(super) fn path(text: &str) -> Result<Path, &'static str> {
    let mut parser = Parser { rest: text };
    // A name may come first without a dot.
    let mut is_first = !parser.take("$");
    let mut steps = Vec::new();
    while !parser.rest.is_empty() {
        if steps.len() >= STEPS {
            return Err("it has too many parts");
        }
        let deep = parser.take("..");
        let selectors = if parser.take("[") {
            parser.brackets()?
        } else if deep || parser.take(".") || is_first {
            vec![parser.dotted()?]
        } else {
            return Err(FORM);
        };
        steps.push(Step { deep, selectors });
        is_first = false;
    }
    Ok(Path(steps))
}

struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// As [`Parser::take`], with white space before it.
    fn token(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.take(text)
    }

    fn need(&mut self, text: &str) -> Result<(), &'static str> {
        if self.token(text) { Ok(()) } else { Err(FORM) }
    }

    /// The text up to a character that is no part of it.
    fn while_is(&mut self, is: impl Fn(char) -> bool) -> &str {
        let (text, rest) = self.rest.split_at(self.rest.find(|c| !is(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        text
    }

    fn name(&mut self) -> Result<String, &'static str> {
        let name = self.while_is(|c| c.is_alphanumeric() || "_-:@/".contains(c));
        if name.is_empty() { Err(FORM) } else { Ok(name.to_owned()) }
    }

    /// A name behind a dot.
    fn dotted(&mut self) -> Result<Selector, &'static str> {
        if self.take("*") { Ok(Selector::All) } else { self.name().map(Selector::Member) }
    }

    /// The selectors up to the closing bracket.
    fn brackets(&mut self) -> Result<Vec<Selector>, &'static str> {
        let mut selectors = Vec::new();
        loop {
            if selectors.len() >= STEPS {
                return Err("it has too many parts");
            }
            selectors.push(self.selector()?);
            if self.token("]") {
                return Ok(selectors);
            }
            self.need(",")?;
        }
    }

    fn selector(&mut self) -> Result<Selector, &'static str> {
        if self.token("*") {
            return Ok(Selector::All);
        }
        if self.take("?") {
            return self.any_of(0).map(Selector::Filter);
        }
        if let Some(name) = self.quoted()? {
            return Ok(Selector::Member(name));
        }
        let start = self.number()?;
        if !self.token(":") {
            return start.map(Selector::Item).ok_or(FORM);
        }
        let end = self.number()?;
        let step = if self.token(":") { self.number()? } else { None };
        Ok(Selector::Slice(Slice { start, end, step: step.unwrap_or(1) }))
    }

    fn number(&mut self) -> Result<Option<i64>, &'static str> {
        self.rest = self.rest.trim_start();
        let digits = self.while_is(|c| c.is_ascii_digit() || c == '-');
        if digits.is_empty() { Ok(None) } else { digits.parse().map(Some).map_err(|_| FORM) }
    }

    /// A text in quotes, if there is one.
    fn quoted(&mut self) -> Result<Option<String>, &'static str> {
        self.rest = self.rest.trim_start();
        let Some(mark) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
            return Ok(None);
        };
        let mut text = String::new();
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, c)) = characters.next() {
            if c == mark {
                self.rest = &self.rest[1 + at + 1..];
                return Ok(Some(text));
            }
            text.push(match c {
                '\\' => match characters.next() {
                    Some((_, c @ ('\\' | '\'' | '"' | '/'))) => c,
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    _ => return Err(FORM),
                },
                c => c,
            });
        }
        Err(FORM)
    }

    fn any_of(&mut self, depth: usize) -> Result<Filter, &'static str> {
        let mut parts = vec![self.all_of(depth)?];
        while self.token("||") {
            parts.push(self.all_of(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::Or(parts) })
    }

    fn all_of(&mut self, depth: usize) -> Result<Filter, &'static str> {
        let mut parts = vec![self.one(depth)?];
        while self.token("&&") {
            parts.push(self.one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::And(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Filter, &'static str> {
        if depth > DEPTH {
            return Err("its conditions are nested too deeply");
        }
        if self.token("!") {
            return Ok(Filter::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.token("(") {
            let filter = self.any_of(depth + 1)?;
            self.need(")")?;
            return Ok(filter);
        }
        let left = self.operand()?;
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        match (operators.iter().find(|(text, _)| self.token(text)), left) {
            (Some((_, operator)), left) => Ok(Filter::Compare(left, *operator, self.operand()?)),
            (None, Operand::Below(names)) => Ok(Filter::Exists(names)),
            (None, Operand::Constant(_)) => Err(FORM),
        }
    }

    fn operand(&mut self) -> Result<Operand, &'static str> {
        if self.token("@") {
            let mut names = Vec::new();
            while names.len() < STEPS {
                if self.take(".") {
                    let name = self.while_is(|c| c.is_alphanumeric() || "_-".contains(c));
                    if name.is_empty() {
                        return Err(FORM);
                    }
                    names.push(Name::Member(name.to_owned()));
                } else if self.take("[") {
                    names.push(match self.quoted()? {
                        Some(name) => Name::Member(name),
                        None => Name::Item(self.number()?.ok_or(FORM)?),
                    });
                    self.need("]")?;
                } else {
                    return Ok(Operand::Below(names));
                }
            }
            return Err("it has too many parts");
        }
        if let Some(text) = self.quoted()? {
            return Ok(Operand::Constant(Value::String(text)));
        }
        let text = self.while_is(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let constant: Value = serde_json::from_str(text).map_err(|_| FORM)?;
        Ok(Operand::Constant(constant))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_texts_are_refused() {
        for wrong in [
            "$.",
            "$a",
            "a[",
            "a[b]",
            "a[1",
            "a[1,]",
            "a[--1]",
            "$..",
            "a b",
            "$...a",
            "$['a",
            "$['a\\x']",
            "$[?(@.a]",
            "$[?(1)]",
            "$[?(@.a = 1)]",
            "$[?(@.a == $.b)]",
            "$[?(@.a.)]",
            "$[?length(@.a) == 1]",
            &format!("$[?{}@.a{}]", "(".repeat(20), ")".repeat(20)),
            &"a".repeat(3).replace('a', ".a.a.a.a.a.a.a.a.a.a.a.a"),
            &format!("$[{}0]", "0,".repeat(40)),
        ] {
            assert!(Path::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conditions_select_values() {
        let value = json!([
            {"kind": "card", "number": 1}, {"kind": "iban", "number": 2, "old": true},
            {"kind": "it's", "tags": ["a", "b"]}, 7, {"number": null},
        ]);
        let found = |condition: &str| {
            let path =
                Path::parse(&format!("$[?{condition}]")).unwrap_or_else(|why| panic!("{condition}: {why}"));
            let items = value.as_array().unwrap();
            path.find(&value)
                .iter()
                .map(|found| items.iter().position(|item| std::ptr::eq(item, *found)).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(found("(@.kind == 'card')"), [0]);
        assert_eq!(found("@.kind=='it\\'s'"), [2]);
        assert_eq!(found("@.number"), [0, 1, 4]);
        assert_eq!(found("(!@.number)"), [2, 3]);
        assert_eq!(found("(@.number >= 1 && @.number < 2.5)"), [0, 1]);
        assert_eq!(found("(@.number < 2 || @.old == true)"), [0, 1]);
        assert_eq!(found("(@.number > 1 && (@.old || @.new))"), [1]);
        assert_eq!(found("(@['tags'][-1] == \"b\")"), [2]);
        assert_eq!(found("(@.number <= 1)"), [0]);
        assert_eq!(found("(@ == 7)"), [3]);
        assert_eq!(found("(@.number == null)"), [4]);
        assert_eq!(found("(@.kind != 'card' && 'card' < @.kind)"), [1, 2]);
    }
}
