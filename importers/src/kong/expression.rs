//! Kong's expressions (`http.path ^= "/a" && http.method == "GET"`) as conditions on variables.

use serde_json::{Value, json};

use super::entities::Route;
use super::paths::{PathRule, escape};

/// A route's expression.
pub(super) struct Expressed {
    /// The text that all matching paths begin with, if there is one.
    pub path: Option<String>,
    pub conditions: Vec<Value>,
    /// The part that has no counterpart.
    pub unsupported: Option<String>,
}

/// The deepest nesting of parentheses.
const DEPTH: usize = 32;

/// The expression of a route, if it has one.
pub(super) fn of_route(route: &Route<'_>) -> Option<Expressed> {
    let text = route.expression.as_ref()?.str()?;
    Some(parse(text))
}

fn parse(text: &str) -> Expressed {
    let mut parser = Parser { rest: text.trim(), depth: 0, unsupported: None };
    let condition = parser.any();
    if !parser.rest.is_empty() && parser.unsupported.is_none() {
        parser.unsupported = Some(parser.rest.chars().take(60).collect());
    }
    let Some(condition) = condition.filter(|_| parser.unsupported.is_none()) else {
        return Expressed {
            path: None,
            conditions: Vec::new(),
            unsupported: parser.unsupported.or(Some(text.to_owned())),
        };
    };
    let conditions = match condition.value {
        Value::Array(mut items) if items.first().is_some_and(|first| first == "AND") => items.split_off(1),
        value => vec![value],
    };
    Expressed { path: condition.path, conditions, unsupported: None }
}

/// A condition, and the beginning of all paths that meet it.
struct Condition {
    value: Value,
    path: Option<String>,
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
    unsupported: Option<String>,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Option<Condition> {
        let first = self.all()?;
        let mut items = vec![first.value];
        let mut path = first.path;
        while self.takes("||") {
            let next = self.all()?;
            // Only the same beginning holds for both.
            path = path.filter(|path| next.path.as_ref() == Some(path));
            items.push(next.value);
        }
        Some(Condition { value: joined("OR", items), path })
    }

    fn all(&mut self) -> Option<Condition> {
        let first = self.one()?;
        let mut items = vec![first.value];
        let mut path = first.path;
        while self.takes("&&") {
            let next = self.one()?;
            path = path.max(next.path);
            items.push(next.value);
        }
        Some(Condition { value: joined("AND", items), path })
    }

    fn one(&mut self) -> Option<Condition> {
        self.depth += 1;
        if self.depth > DEPTH {
            return self.give_up("deeply nested parentheses");
        }
        let negated = self.takes("!");
        let condition = if self.takes("(") {
            let inside = self.any()?;
            if !self.takes(")") {
                return self.give_up(self.rest);
            }
            Some(inside)
        } else if negated {
            self.give_up(self.rest)
        } else {
            self.comparison()
        };
        self.depth -= 1;
        let condition = condition?;
        Some(match negated {
            true => Condition { value: json!(["!AND", condition.value]), path: None },
            false => condition,
        })
    }

    fn comparison(&mut self) -> Option<Condition> {
        let start = self.rest;
        let mut insensitive = false;
        let mut functions = 0;
        loop {
            if self.takes("lower(") {
                insensitive = true;
            } else if !self.takes("any(") {
                break;
            }
            functions += 1;
        }
        let field = self.word();
        for _ in 0..functions {
            if !self.takes(")") {
                return self.give_up(start);
            }
        }
        let operators = ["==", "!=", "^=", "=^", "~", ">=", "<=", ">", "<", "not in", "in", "contains"];
        let Some(operator) = operators.iter().copied().find(|operator| self.takes(operator)) else {
            return self.give_up(start);
        };
        let Some(right) = self.value() else { return self.give_up(start) };
        let Some(variable) = variable(field) else { return self.give_up(start) };
        let text = match &right {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (matches, equals) = if insensitive { ("~*", "~*") } else { ("~~", "==") };
        let exact = if insensitive { json!(format!("^{}$", escape(&text))) } else { right.clone() };
        let value = match operator {
            "==" => json!([variable, equals, exact]),
            "!=" if insensitive => json!([variable, "!", "~*", exact]),
            "!=" => json!([variable, "~=", right]),
            "^=" => json!([variable, matches, format!("^{}", escape(&text))]),
            "=^" => json!([variable, matches, format!("{}$", escape(&text))]),
            "contains" => json!([variable, matches, escape(&text)]),
            "~" => json!([variable, matches, text.replace("?P<", "?<")]),
            "in" => json!([variable, "ipmatch", [text]]),
            "not in" => json!([variable, "!", "ipmatch", [text]]),
            operator => json!([variable, operator, right]),
        };
        let path = match (field, operator, insensitive) {
            ("http.path", "==" | "^=", false) => Some(text),
            ("http.path", "~", false) if text.starts_with('^') => Some(PathRule::Regex(text).literal()),
            _ => None,
        };
        Some(Condition { value, path: path.filter(|path| path.starts_with('/')) })
    }

    /// A text, a raw text, a number, or an address.
    fn value(&mut self) -> Option<Value> {
        if let Some(raw) = self.rest.strip_prefix("r#\"") {
            let (text, rest) = raw.split_once("\"#")?;
            self.rest = rest.trim_start();
            return Some(Value::from(text));
        }
        if let Some(quoted) = self.rest.strip_prefix('"') {
            let mut text = String::new();
            let mut chars = quoted.char_indices();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        self.rest = quoted[at + 1..].trim_start();
                        return Some(Value::from(text));
                    }
                    '\\' => match chars.next()?.1 {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        other => text.push(other),
                    },
                    c => text.push(c),
                }
            }
            return None;
        }
        let word = self.word();
        if word.is_empty() {
            return None;
        }
        Some(word.parse::<i64>().map_or_else(|_| Value::from(word), Value::from))
    }

    fn word(&mut self) -> &'a str {
        let part = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn takes(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn give_up<T>(&mut self, at: &str) -> Option<T> {
        let text: String = at.chars().take(60).collect();
        self.unsupported.get_or_insert(text);
        None
    }
}

fn joined(operator: &str, mut items: Vec<Value>) -> Value {
    if items.len() == 1 {
        return items.remove(0);
    }
    items.insert(0, operator.into());
    Value::Array(items)
}

/// The variable of a field.
fn variable(field: &str) -> Option<String> {
    Some(match field {
        "http.method" => "request_method".to_owned(),
        "http.host" => "host".to_owned(),
        "http.path" => "uri".to_owned(),
        "net.protocol" => "scheme".to_owned(),
        "tls.sni" => "ssl_server_name".to_owned(),
        "net.src.ip" => "remote_addr".to_owned(),
        "net.src.port" => "remote_port".to_owned(),
        "net.dst.ip" => "server_addr".to_owned(),
        "net.dst.port" | "net.port" => "server_port".to_owned(),
        _ => match (field.strip_prefix("http.headers."), field.strip_prefix("http.queries.")) {
            (Some(name), _) => format!("http_{}", name.replace('-', "_").to_ascii_lowercase()),
            (_, Some(name)) => format!("arg_{name}"),
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_become_conditions() {
        for (text, path, conditions) in [
            (r#"http.path ^= "/a""#, Some("/a"), json!([["uri", "~~", "^/a"]])),
            (
                r#"(http.path == "/a") && (http.method == "GET" || lower(http.headers.x_v) == "One")"#,
                Some("/a"),
                json!([
                    ["uri", "==", "/a"],
                    ["OR", ["request_method", "==", "GET"], ["http_x_v", "~*", "^One$"]]
                ]),
            ),
            (
                r##"!(http.host =^ r#".b"#) && net.dst.port == 80"##,
                None,
                json!([["!AND", ["host", "~~", "\\.b$"]], ["server_port", "==", 80]]),
            ),
            (
                r#"any(http.queries.q) ~ "^a\\d" && net.src.ip in 10.0.0.0/8"#,
                None,
                json!([["arg_q", "~~", "^a\\d"], ["remote_addr", "ipmatch", ["10.0.0.0/8"]]]),
            ),
            (
                r#"http.path ^= "/a" || http.path ^= "/b""#,
                None,
                json!([["OR", ["uri", "~~", "^/a"], ["uri", "~~", "^/b"]]]),
            ),
        ] {
            let expressed = parse(text);
            assert_eq!(expressed.unsupported, None, "{text}");
            assert_eq!(expressed.path.as_deref(), path, "{text}");
            assert_eq!(Value::Array(expressed.conditions), conditions, "{text}");
        }
        for text in ["http.path.segments.0 == \"a\"", "", "(", "!!!", "http.path ==", &"(".repeat(100)] {
            assert!(parse(text).unsupported.is_some(), "{text}");
        }
    }
}
