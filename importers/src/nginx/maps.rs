//! `map`, `geo` and `split_clients`: variables whose value depends on another variable's.
//!
//! A location that uses such a variable becomes several routes, one for each value, tried in order.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::condition::{compile, equals_ignoring_case};
use super::directive::{Block, Directive};
use super::text::{Text, escaped, group_names};
use super::values;

/// A variable of `map` or `geo`.
pub(super) struct Map<'a> {
    pub directive: &'a Directive,
    kind: Kind,
    source: Text,
    /// Which draw a split uses.
    number: usize,
    pub is_used: Cell<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Map,
    Geo,
    Split,
}

/// Values of a variable with their conditions, in the order in which they are tried; the last one
/// has none.
pub(super) type Values = Vec<(Option<Value>, Text)>;

/// All such variables of a configuration, by name.
#[derive(Default)]
pub(super) struct Maps<'a> {
    maps: BTreeMap<String, Map<'a>>,
}

impl<'a> Maps<'a> {
    pub(super) fn read(block: &'a Block) -> Maps<'a> {
        let mut maps = BTreeMap::new();
        let mut sources: Vec<&str> = Vec::new();
        for directive in &block.directives {
            let kind = match directive.name.as_str() {
                "map" => Kind::Map,
                "geo" => Kind::Geo,
                "split_clients" => Kind::Split,
                _ => continue,
            };
            let (source, name) = match &directive.args[..] {
                [name] if kind == Kind::Geo => ("$remote_addr", name),
                [source, name] => (source.as_str(), name),
                _ => continue,
            };
            directive.mark_all_used();
            let Some(name) = name.strip_prefix('$') else { continue };
            if kind == Kind::Split && !sources.contains(&source) {
                sources.push(source);
            }
            let number = sources.iter().position(|known| *known == source).unwrap_or(0);
            let map = Map { directive, kind, source: Text::parse(source), number, is_used: Cell::new(false) };
            maps.insert(name.to_owned(), map);
        }
        Maps { maps }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Map<'a>> {
        self.maps.get(name)
    }

    /// The map variables among these, and those that their values come from; a variable before those
    /// that use it.
    pub(super) fn needed(&self, names: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut found = Vec::new();
        for name in names {
            self.collect(&name, &mut found, 0);
        }
        found
    }

    fn collect(&self, name: &str, found: &mut Vec<String>, depth: usize) {
        let Some(map) = self.maps.get(name).filter(|_| depth < 8) else { return };
        if found.iter().any(|known| known == name) {
            return;
        }
        map.is_used.set(true);
        let values = map.directive.children().iter().flat_map(|entry| &entry.args);
        let texts = values.map(|text| Text::parse(text)).chain([map.source.clone()]);
        for text in texts {
            text.variables().for_each(|name| self.collect(name, found, depth + 1));
        }
        found.push(name.to_owned());
    }
}

impl Map<'_> {
    /// The values with their conditions.
    ///
    /// # Errors
    /// Why they have no conditions here.
    pub(super) fn values(&self, lookup: &dyn Fn(&str) -> Option<Text>) -> Result<Values, String> {
        let source = self.source.fill(lookup);
        match self.kind {
            Kind::Split => return self.drawn(),
            Kind::Geo => return self.networks(&source),
            Kind::Map => {}
        }
        let hostnames = self.directive.children().iter().any(|entry| entry.name == "hostnames");
        let (mut exact, mut masks, mut patterns) = (Vec::new(), Vec::new(), Vec::new());
        let mut default = Text::default();
        for entry in self.directive.children() {
            let value = Text::parse(entry.arg(0));
            match entry.name.as_str() {
                "default" => default = value,
                "hostnames" | "volatile" if entry.args.is_empty() => {}
                "include" => return Err(format!("`{}` cannot be read", entry.text())),
                key => {
                    if let Some(pattern) = key.strip_prefix('~') {
                        let (pattern, ignore_case) = match pattern.strip_prefix('*') {
                            Some(pattern) => (pattern, true),
                            None => (pattern, false),
                        };
                        let names = group_names(pattern);
                        let named = |name: &str| names.iter().any(|(known, _)| known == name);
                        if value.has_groups() || value.variables().any(named) {
                            return Err(format!("the value of `{key}` has groups of its regular expression"));
                        }
                        patterns.push((pattern.to_owned(), ignore_case, value));
                    } else if hostnames && (key.contains('*') || key.starts_with('.')) {
                        masks.push((key.to_owned(), value));
                    } else {
                        exact.push((key.strip_prefix('\\').unwrap_or(key).to_owned(), value));
                    }
                }
            }
        }
        masks.sort_by_key(|(mask, _)| (!mask.starts_with(['*', '.']), std::cmp::Reverse(mask.len())));
        let masks = masks.into_iter().map(|(mask, value)| (mask_pattern(&mask), true, value));
        let patterns: Vec<_> = masks.chain(patterns).collect();
        if let Some(text) = source.constant() {
            return self.of_constant(text, exact, patterns, default);
        }
        let variable =
            source.single().ok_or_else(|| format!("`{}` is more than one variable", self.source.source()))?;
        source.template().map_err(|name| format!("the gateway has no variable `${name}`"))?;
        let mut values: Values = exact
            .into_iter()
            .map(|(key, value)| (Some(equals_ignoring_case(variable, &key)), value))
            .collect();
        for (pattern, ignore_case, value) in patterns {
            let operator = if ignore_case { "~*" } else { "~~" };
            let is_empty = compile(&pattern, ignore_case).is_some_and(|regex| regex.is_match(""));
            let condition = match is_empty {
                true => json!(["OR", [variable, "==", null], [variable, operator, pattern]]),
                false => json!([variable, operator, pattern]),
            };
            values.push((Some(condition), value));
        }
        values.push((None, default));
        Ok(values)
    }

    /// Shares by digits of the request's own identifier, which is random. As with nginx's hash, splits of one text draw
    /// alike, and those of another text independently; of more than eight texts some draw alike.
    fn drawn(&self) -> Result<Values, String> {
        let shares = self.shares().ok_or("invalid percentages")?;
        let mut values = Values::new();
        let mut before = 0;
        for (share, value) in shares {
            let end = before + share;
            let (from, to) = (before * DRAWN / 10_000, end * DRAWN / 10_000);
            if to > from && to < DRAWN {
                values.push((Some(json!(["request_id", "~~", below(to, self.number)])), value));
            } else if to > from {
                values.push((None, value));
            }
            before = end;
        }
        if before < 10_000 {
            values.push((None, Text::default()));
        }
        Ok(values)
    }

    fn of_constant(
        &self,
        text: &str,
        exact: Vec<(String, Text)>,
        patterns: Vec<(String, bool, Text)>,
        default: Text,
    ) -> Result<Values, String> {
        if let Some((_, value)) = exact.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(text)) {
            return Ok(vec![(None, value)]);
        }
        for (pattern, ignore_case, value) in patterns {
            match compile(&pattern, ignore_case) {
                Some(regex) if regex.is_match(text) => return Ok(vec![(None, value)]),
                Some(_) => {}
                None => return Err(format!("`{pattern}` cannot be evaluated while importing")),
            }
        }
        Ok(vec![(None, default)])
    }

    fn networks(&self, source: &Text) -> Result<Values, String> {
        let variable = source.single().ok_or("its address is not a variable")?;
        let mut networks = Vec::new();
        let mut default = Text::default();
        for entry in self.directive.children() {
            let value = Text::parse(entry.arg(0));
            match entry.name.as_str() {
                "default" => default = value,
                "proxy_recursive" => {}
                "ranges" | "include" | "proxy" | "delete" => {
                    return Err(format!("`{}` is not carried over", entry.name));
                }
                network => {
                    let network =
                        values::network(network).ok_or_else(|| format!("`{network}` is no network"))?;
                    let bits: u8 = network.split_once('/').map_or(128, |(_, bits)| bits.parse().unwrap_or(0));
                    networks.push((bits, network, value));
                }
            }
        }
        networks.sort_by_key(|(bits, _, _)| std::cmp::Reverse(*bits));
        let mut values: Values = networks
            .into_iter()
            .map(|(_, network, value)| (Some(json!([variable, "ipmatch", [network]])), value))
            .collect();
        values.push((None, default));
        Ok(values)
    }

    /// Of `split_clients`: the values with their shares in hundredths of a percent.
    pub(super) fn shares(&self) -> Option<Vec<(u64, Text)>> {
        if self.kind != Kind::Split {
            return None;
        }
        let mut shares = Vec::new();
        let mut left: u64 = 10_000;
        for entry in self.directive.children() {
            let share = match entry.name.strip_suffix('%') {
                Some(percent) => (percent.parse::<f64>().ok()? * 100.0).round() as u64,
                None if entry.name == "*" => left,
                None => return None,
            };
            left = left.checked_sub(share)?;
            shares.push((share, Text::parse(entry.arg(0))));
        }
        Some(shares)
    }
}

/// Hexadecimal digits of an identifier that choose a share.
const DIGITS: u32 = 4;

/// The number of their values.
const DRAWN: u64 = 1 << (4 * DIGITS);

/// An identifier has 128 bits.
const DRAWS: usize = 32 / DIGITS as usize;

/// A pattern of the identifiers whose digits of this draw are a number below this one. Draws are independent.
fn below(number: u64, draw: usize) -> String {
    let class = |end: u64| match end {
        1..=10 => format!("[0-{}]", end - 1),
        11.. => format!("[0-9a-{:x}]", end - 1),
        0 => String::new(),
    };
    let digits = format!("{number:0width$x}", width = DIGITS as usize);
    let digit = |at: u32| number >> (4 * (DIGITS - 1 - at)) & 15;
    let parts = (0..DIGITS).filter(|at| digit(*at) > 0);
    let parts = parts.map(|at| format!("{}{}", &digits[..at as usize], class(digit(at))));
    let skipped = match draw % DRAWS {
        0 => String::new(),
        draw => format!(".{{{}}}", draw * DIGITS as usize),
    };
    format!("^{skipped}(?:{})", parts.collect::<Vec<_>>().join("|"))
}

/// A mask of host names as a regular expression.
pub(super) fn mask_pattern(mask: &str) -> String {
    if let Some(name) = mask.strip_prefix("*.") {
        format!("\\.{}$", escaped(name))
    } else if let Some(name) = mask.strip_prefix('.') {
        format!("(^|\\.){}$", escaped(name))
    } else {
        format!("^{}\\.", escaped(mask.trim_end_matches(".*")))
    }
}

#[cfg(test)]
mod tests {
    use super::{DRAWN, below};

    #[test]
    fn shares_are_ranges_of_the_first_digits() {
        for end in [1, 9, 10, 11, 16, 0x00a0, 0x0123, 0x8000, 0xa0b0, DRAWN - 1] {
            for (draw, before) in [(0, ""), (1, "fff0"), (7, "0000ffff0000ffff0000ffff0000"), (8, "")] {
                let pattern = regex::Regex::new(&below(end, draw)).unwrap();
                let matched = (0..DRAWN).filter(|number| pattern.is_match(&format!("{before}{number:04x}0")));
                assert_eq!(matched.collect::<Vec<_>>(), (0..end).collect::<Vec<_>>(), "{end:x} {draw}");
            }
        }
    }
}
