//! Values as protobuf's JSON form writes them: durations, enums, wrapped numbers, matchers of texts.

use std::net::IpAddr;

use serde_json::Value;

use crate::node::Node;

/// The items of a repeated field. Envoy also accepts one item without a list.
pub(super) fn list<'a>(node: Option<Node<'a>>) -> Vec<Node<'a>> {
    match node {
        Some(node) if node.value().is_array() => node.items(),
        Some(node) if !node.value().is_null() => vec![node],
        _ => Vec::new(),
    }
}

/// The items of a repeated field of an object.
pub(super) fn items<'a>(node: &Node<'a>, name: &str) -> Vec<Node<'a>> {
    list(node.some(name))
}

/// The texts of a repeated field.
pub(super) fn texts(node: &Node<'_>, name: &str) -> Vec<String> {
    items(node, name).iter().filter_map(Node::text).collect()
}

/// A text field.
pub(super) fn text<'a>(node: &Node<'a>, name: &str) -> Option<&'a str> {
    node.some(name)?.str()
}

/// The text of an enum, in upper case: Envoy reads them in any case.
pub(super) fn enumerated(node: &Node<'_>, name: &str) -> Option<String> {
    Some(node.some(name)?.text()?.to_ascii_uppercase())
}

/// A number, bare or as `{value: 5}`.
pub(super) fn number(node: &Node<'_>, name: &str) -> Option<u64> {
    let node = node.some(name)?;
    node.u64().or_else(|| node.some("value")?.u64())
}

/// A boolean, bare or as `{value: true}`.
pub(super) fn boolean(node: &Node<'_>, name: &str) -> Option<bool> {
    let node = node.some(name)?;
    node.bool().or_else(|| node.some("value")?.bool()).or_else(|| {
        // `generate_request_id: false,`: YAML reads the comma as part of a text.
        node.str()?.trim_end_matches(',').trim().parse().ok()
    })
}

/// Seconds of a duration field.
pub(super) fn seconds(node: &Node<'_>, name: &str) -> Option<f64> {
    seconds_of(&node.some(name)?)
}

/// Seconds of a duration: `0.25s`, or `{seconds: 1, nanos: 0}`.
pub(super) fn seconds_of(node: &Node<'_>) -> Option<f64> {
    let parsed = match node.value() {
        Value::Object(_) => {
            let part = |name: &str| node.some(name).and_then(|part| part.f64());
            let (whole, nanos) = (part("seconds"), part("nanos"));
            whole.or(nanos.map(|_| 0.0)).map(|whole| whole + nanos.unwrap_or_default() / 1e9)
        }
        _ => node.text()?.trim().strip_suffix('s')?.parse().ok(),
    };
    parsed.filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
}

/// A number of seconds as JSON: whole ones without a point, others to the millisecond.
pub(super) fn seconds_json(seconds: f64) -> Value {
    let rounded = (seconds * 1000.0).round() / 1000.0;
    if rounded.fract() == 0.0 { Value::from(rounded as u64) } else { Value::from(rounded) }
}

/// A share of the requests in percent: `FractionalPercent` or `Percent`, also as `default_value`.
pub(super) fn percent(node: &Node<'_>) -> Option<f64> {
    if let Some(inner) = node.some("default_value") {
        note_runtime_key(node);
        return percent(&inner);
    }
    if let Some(value) = node.some("value") {
        return value.f64();
    }
    if let Some(value) = node.f64() {
        return Some(value);
    }
    let numerator = node.some("numerator").and_then(|part| part.f64()).unwrap_or_default();
    let denominator = match enumerated(node, "denominator").as_deref() {
        None | Some("HUNDRED") => 100.0,
        Some("TEN_THOUSAND") => 10_000.0,
        Some("MILLION") => 1_000_000.0,
        Some(_) => return None,
    };
    node.value().is_object().then_some(numerator / denominator * 100.0)
}

/// Reads the name of a runtime value: without a runtime layer the default counts.
pub(super) fn note_runtime_key(node: &Node<'_>) {
    let _ = node.get("runtime_key");
}

/// A condition on a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Text {
    Exact(String),
    /// A regular expression that may match anywhere.
    Pattern(String),
}

/// A condition on a text, and whether upper and lower case are equal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TextMatch {
    pub(super) text: Text,
    pub(super) ignore_case: bool,
}

impl TextMatch {
    pub(super) fn exact(text: &str) -> TextMatch {
        TextMatch { text: Text::Exact(text.to_owned()), ignore_case: false }
    }

    pub(super) fn pattern(pattern: String) -> TextMatch {
        TextMatch { text: Text::Pattern(pattern), ignore_case: false }
    }

    /// As an expression of `vars`.
    pub(super) fn on(&self, variable: &str) -> Value {
        match (&self.text, self.ignore_case) {
            (Text::Exact(text), false) => serde_json::json!([variable, "==", text]),
            (Text::Exact(text), true) => serde_json::json!([variable, "~*", format!("^{}$", escaped(text))]),
            (Text::Pattern(pattern), false) => serde_json::json!([variable, "~~", pattern]),
            (Text::Pattern(pattern), true) => serde_json::json!([variable, "~*", pattern]),
        }
    }

    /// As a pattern.
    pub(super) fn regex(&self) -> String {
        let pattern = match &self.text {
            Text::Exact(text) => format!("^{}$", escaped(text)),
            Text::Pattern(pattern) => pattern.clone(),
        };
        if self.ignore_case { format!("(?i){pattern}") } else { pattern }
    }
}

/// A `StringMatcher`; the names of the older matchers of headers end in `_match`.
pub(super) fn string_match(node: &Node<'_>) -> Option<TextMatch> {
    let either = |name: &str| text(node, name).or_else(|| text(node, &format!("{name}_match")));
    let condition = if let Some(exact) = either("exact") {
        Text::Exact(exact.to_owned())
    } else if let Some(prefix) = either("prefix") {
        Text::Pattern(format!("^{}", escaped(prefix)))
    } else if let Some(suffix) = either("suffix") {
        Text::Pattern(format!("{}$", escaped(suffix)))
    } else if let Some(part) = either("contains") {
        Text::Pattern(escaped(part))
    } else if let Some(regex) = node.any(&["safe_regex", "safe_regex_match"]) {
        Text::Pattern(whole(&regex_text(&regex)?))
    } else {
        Text::Pattern(whole(either("regex")?))
    };
    let ignore_case = boolean(node, "ignore_case").unwrap_or(false);
    Some(TextMatch { text: condition, ignore_case })
}

/// The text of a `RegexMatcher`; the engine is RE2 in any case.
pub(super) fn regex_text(node: &Node<'_>) -> Option<String> {
    if let Some(engine) = node.get("google_re2") {
        engine.whole();
    }
    node.str().or_else(|| text(node, "regex")).map(str::to_owned)
}

/// A pattern that must match a text as a whole, as Envoy's do.
pub(super) fn whole(pattern: &str) -> String {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let ends = inner.ends_with('$') && !inner.ends_with("\\$");
    let inner = if ends { &inner[..inner.len() - 1] } else { inner };
    // A choice at the top would otherwise bind weaker than the anchors.
    if inner.contains('|') { format!("^(?:{inner})$") } else { format!("^{inner}$") }
}

/// A text as a pattern that matches it alone.
pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Whether a pattern can be compiled: look-around and back-references are not RE2's. Checks brackets alone.
pub(super) fn is_balanced(pattern: &str) -> bool {
    let (mut depth, mut in_class, mut skip) = (0_i32, false, false);
    for c in pattern.chars() {
        if std::mem::take(&mut skip) {
            continue;
        }
        match c {
            '\\' => skip = true,
            '[' if !in_class => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0 && !in_class && !skip
}

/// The configuration of an extension, typed or as version 2 writes it, and the name of its type.
pub(super) struct Extension<'a> {
    pub(super) node: Node<'a>,
    pub(super) config: Option<Node<'a>>,
    /// Such as `HttpConnectionManager`; of an extension without a type, the last part of its name.
    pub(super) kind: String,
    /// As the file names it.
    pub(super) name: String,
}

/// An extension: `name` with `typed_config` or `config`.
pub(super) fn extension<'a>(node: &Node<'a>) -> Extension<'a> {
    let name = text(node, "name").unwrap_or_default().to_owned();
    let mut config = node.any(&["typed_config", "config"]);
    let mut kind = None;
    if let Some(outer) = config.clone() {
        let last = |text: &str| text.rsplit(['.', '/']).next().unwrap_or_default().to_owned();
        let of_type = last(text(&outer, "@type").unwrap_or_default());
        if of_type == "TypedStruct" {
            kind = text(&outer, "type_url").map(last);
            config = outer.some("value");
        } else {
            kind = Some(of_type).filter(|kind| !kind.is_empty());
        }
    }
    let kind = kind.unwrap_or_else(|| name.rsplit('.').next().unwrap_or_default().to_owned());
    Extension { node: node.clone(), config, kind, name }
}

/// A `CidrRange`.
pub(super) fn network(range: &Node<'_>) -> Option<String> {
    let address: IpAddr = text(range, "address_prefix")?.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    // Absent is 0, as everywhere in protobuf.
    let length = number(range, "prefix_len").unwrap_or(0).min(most);
    Some(format!("{address}/{length}"))
}

/// A replacement of RE2, `\1`, in the form of the plugins.
pub(super) fn replacement(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '$' => out.push_str("$$"),
            '\\' => match chars.next() {
                Some(digit) if digit.is_ascii_digit() => out.push_str(&format!("${{{digit}}}")),
                Some(other) => out.push(other),
                None => {}
            },
            c => out.push(c),
        }
    }
    out
}
