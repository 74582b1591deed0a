//! The texts of models, policies and matchers.

/// The sections of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub request: Vec<String>,
    pub policy: Vec<String>,
    /// Names of roles, and their number of fields.
    pub roles: Vec<(String, usize)>,
    pub effect: String,
    pub matcher: String,
}

/// An expression of a matcher.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Not(Box<Expression>),
    Compare(Box<Expression>, &'static str, Box<Expression>),
    In(Box<Expression>, Vec<Expression>),
    Call(String, Vec<Expression>),
    /// `r.sub`, or a name alone.
    Name(String),
    Text(String),
    Number(f64),
}

/// Expressions within expressions.
const DEPTH: usize = 32;

/// Parses a model.
///
/// # Errors
/// A section or a definition is missing or not known, in words.
pub(super) fn model(text: &str) -> Result<Model, String> {
    let mut model = Model::default();
    let mut section = "";
    for line in joined(text) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = match name.trim() {
                "request_definition" => "r",
                "policy_definition" => "p",
                "role_definition" => "g",
                "policy_effect" => "e",
                "matchers" => "m",
                other => return Err(format!("unknown section [{other}]")),
            };
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| format!("`{line}` must be a definition, as `name = value`"))?;
        let (key, value) = (key.trim(), value.trim());
        let fields = || value.split(',').map(|field| field.trim().to_owned()).collect::<Vec<_>>();
        match (section, key) {
            ("r", "r") => model.request = fields(),
            ("p", "p") => model.policy = fields(),
            ("g", name) if name.starts_with('g') => model.roles.push((name.to_owned(), fields().len())),
            ("e", "e") => model.effect = value.to_owned(),
            ("m", "m") => model.matcher = value.to_owned(),
            ("", _) => return Err("a definition stands in no section".to_owned()),
            (_, key) => return Err(format!("`{key}` is not supported in its section")),
        }
    }
    for (is_missing, name) in [
        (model.request.is_empty(), "request_definition"),
        (model.policy.is_empty(), "policy_definition"),
        (model.effect.is_empty(), "policy_effect"),
        (model.matcher.is_empty(), "matchers"),
    ] {
        if is_missing {
            return Err(format!("section [{name}] is missing"));
        }
    }
    if model.request.len() != 3 {
        return Err("request_definition must have three fields: subject, object and action".to_owned());
    }
    Ok(model)
}

/// The lines with something on them, without comments; those that end with a backslash are joined with the next.
fn joined(text: &str) -> Vec<String> {
    let (mut lines, mut before) = (Vec::new(), String::new());
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => before.push_str(part),
            None => {
                let whole = std::mem::take(&mut before) + line;
                lines.extend(Some(whole).filter(|line| !line.is_empty()));
            }
        }
    }
    lines.extend(Some(before).filter(|line| !line.is_empty()));
    lines
}

/// The fields of each line of a policy, with its number.
pub(super) fn policy(text: &str) -> impl Iterator<Item = (usize, Result<Vec<String>, &'static str>)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| (at + 1, fields(line)))
    })
}

/// Fields between commas; one in double quotes may have commas.
fn fields(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut fields, mut rest) = (Vec::new(), line);
    loop {
        rest = rest.trim_start();
        let (field, after) = match rest.strip_prefix('"') {
            Some(inner) => {
                let (field, after) = inner.split_once('"').ok_or("a quote does not end")?;
                let after = after.trim_start();
                let next = after.strip_prefix(',');
                if next.is_none() && !after.is_empty() {
                    return Err("text follows a closing quote");
                }
                (field, next)
            }
            None => match rest.split_once(',') {
                Some((field, after)) => (field.trim_end(), Some(after)),
                None => (rest, None),
            },
        };
        fields.push(field.to_owned());
        match after {
            Some(after) => rest = after,
            None => return Ok(fields),
        }
    }
}

/// Parses a matcher.
///
/// # Errors
/// Where it is no expression, in words.
pub(super) fn expression(text: &str) -> Result<Expression, String> {
    let mut parser = Parser { rest: text };
    let expression = parser.any_of(0)?;
    match parser.rest.trim_start() {
        "" => Ok(expression),
        rest => Err(format!("unexpected `{rest}`")),
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn token(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn need(&mut self, text: &str) -> Result<(), String> {
        if self.token(text) { Ok(()) } else { Err(format!("expected `{text}` before `{}`", self.rest)) }
    }

    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn any_of(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = vec![self.all_of(depth)?];
        while self.token("||") {
            parts.push(self.all_of(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Or(parts) })
    }

    fn all_of(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = vec![self.comparison(depth)?];
        while self.token("&&") {
            parts.push(self.comparison(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::And(parts) })
    }

    fn comparison(&mut self, depth: usize) -> Result<Expression, String> {
        let left = self.primary(depth)?;
        let operators = ["==", "!=", "<=", ">=", "<", ">"];
        if let Some(operator) = operators.into_iter().find(|operator| self.token(operator)) {
            let right = self.primary(depth)?;
            return Ok(Expression::Compare(Box::new(left), operator, Box::new(right)));
        }
        let before = self.rest;
        if self.word() == "in" {
            self.need("(")?;
            return Ok(Expression::In(Box::new(left), self.list(depth)?));
        }
        self.rest = before;
        Ok(left)
    }

    /// Expressions up to the closing parenthesis.
    fn list(&mut self, depth: usize) -> Result<Vec<Expression>, String> {
        let mut list = Vec::new();
        if self.token(")") {
            return Ok(list);
        }
        loop {
            list.push(self.any_of(depth + 1)?);
            if self.token(")") {
                return Ok(list);
            }
            self.need(",")?;
        }
    }

    fn primary(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        if self.token("!") {
            return Ok(Expression::Not(Box::new(self.primary(depth + 1)?)));
        }
        if self.token("(") {
            let inner = self.any_of(depth + 1)?;
            self.need(")")?;
            return Ok(inner);
        }
        for mark in ["\"", "'"] {
            if self.token(mark) {
                let (text, rest) = self.rest.split_once(mark).ok_or("a text does not end")?;
                self.rest = rest;
                return Ok(Expression::Text(text.to_owned()));
            }
        }
        let word = self.word();
        if word.is_empty() {
            return Err(format!("expected a value before `{}`", self.rest));
        }
        if self.token("(") {
            return Ok(Expression::Call(word.to_owned(), self.list(depth)?));
        }
        match word.parse::<f64>() {
            Ok(number) if word.starts_with(|c: char| c.is_ascii_digit()) => Ok(Expression::Number(number)),
            _ => Ok(Expression::Name(word.to_owned())),
        }
    }
}
