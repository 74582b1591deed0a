//! Paths into JSON: JSONPath (RFC 9535) without functions.
//!
//! A path leads through a value in one pass, whose time is bounded by the size of the value and the number of steps:
//! the steps that apply to a value are the states of an automaton, so a value is found once, also by `$..*..*`.
//! Conditions compare members of the value with constants; they cannot refer to the rest of the document.

mod filter;
mod parse;

use serde_json::Value;

use filter::Filter;

/// Steps that a path may have: bits of the automaton's state.
const STEPS: usize = 32;
/// Values that [`Path::find`] returns at most.
const FOUND: usize = 1024;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
struct Step {
    /// At any depth.
    deep: bool,
    /// A child that one of them selects.
    selectors: Vec<Selector>,
}

#[derive(Debug, Clone, PartialEq)]
enum Selector {
    Member(String),
    /// A negative one counts from the end.
    Item(i64),
    All,
    Slice(Slice),
    Filter(Filter),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    step: i64,
}

/// A change of a value that a path leads to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Edit {
    Keep,
    Set(Value),
    Remove,
}

/// The place of a value in its parent.
#[derive(Clone, Copy)]
enum Key<'k> {
    Name(&'k str),
    /// And the number of items.
    Index(usize, usize),
}

/// Steps that apply to the children of a value, a bit each.
type States = u64;

impl Path {
    /// Parses `$.a.b`, `a.b`, `$..a`, `$.a[0]`, `$.a[-1]`, `$.a[1:3]`, `$.a[*]`, `$.a.*`, `$['a','b']` and
    /// `$.a[?(@.b == 1 && @.c)]`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Path, &'static str> {
        parse::path(text)
    }

    /// Whether it leads to the document itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The values that the path leads to, in the order of the document; at most 1024.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = Vec::new();
        if self.is_root() {
            found.push(value);
        } else {
            self.search(value, 1, &mut found);
        }
        found
    }

    fn search<'v>(&self, value: &'v Value, states: States, found: &mut Vec<&'v Value>) {
        let mut child = |key: Key<'_>, child: &'v Value| {
            let (is_found, next) = self.follow(states, key, child);
            if found.len() >= FOUND {
                return;
            }
            if is_found {
                found.push(child);
            }
            if next != 0 {
                self.search(child, next, found);
            }
        };
        match value {
            Value::Object(members) => members.iter().for_each(|(name, value)| child(Key::Name(name), value)),
            Value::Array(items) => {
                let length = items.len();
                items.iter().enumerate().for_each(|(at, value)| child(Key::Index(at, length), value));
            }
            _ => {}
        }
    }

    /// Changes the values that the path leads to, children before their parents; not the document itself. Returns
    /// whether there was a change.
    pub fn edit(&self, value: &mut Value, act: &mut dyn FnMut(&Value) -> Edit) -> bool {
        !self.is_root() && self.change(value, 1, act)
    }

    fn change(&self, value: &mut Value, states: States, act: &mut dyn FnMut(&Value) -> Edit) -> bool {
        let mut changed = false;
        // Whether the child stays.
        let mut child = |key: Key<'_>, child: &mut Value| {
            let (is_found, next) = self.follow(states, key, child);
            if next != 0 {
                changed |= self.change(child, next, act);
            }
            match if is_found { act(child) } else { Edit::Keep } {
                Edit::Keep => return true,
                Edit::Set(new) => *child = new,
                Edit::Remove => {
                    changed = true;
                    return false;
                }
            }
            changed = true;
            true
        };
        match value {
            Value::Object(members) => members.retain(|name, value| child(Key::Name(name), value)),
            Value::Array(items) => {
                let (mut at, length) = (0, items.len());
                items.retain_mut(|value| {
                    at += 1;
                    child(Key::Index(at - 1, length), value)
                });
            }
            _ => {}
        }
        changed
    }

    /// Whether the path leads to this child, and the steps that apply to its children.
    fn follow(&self, states: States, key: Key<'_>, child: &Value) -> (bool, States) {
        let (mut is_found, mut next) = (false, 0);
        for (at, step) in self.0.iter().enumerate().filter(|(at, _)| states & (1 << at) != 0) {
            if step.deep {
                next |= 1 << at;
            }
            if step.selectors.iter().any(|selector| selector.selects(key, child)) {
                match at + 1 {
                    end if end == self.0.len() => is_found = true,
                    following => next |= 1 << following,
                }
            }
        }
        (is_found, next)
    }
}

impl Selector {
    fn selects(&self, key: Key<'_>, child: &Value) -> bool {
        match (self, key) {
            (Selector::All, _) => true,
            (Selector::Member(name), Key::Name(own)) => name == own,
            (Selector::Item(index), Key::Index(at, length)) => from_end(*index, length) == Some(at),
            (Selector::Slice(slice), Key::Index(at, length)) => slice.has(at, length),
            (Selector::Filter(filter), _) => filter.holds(child),
            (Selector::Member(_), Key::Index(..))
            | (Selector::Item(_) | Selector::Slice(_), Key::Name(_)) => false,
        }
    }
}

/// The position that an index stands for.
fn from_end(index: i64, length: usize) -> Option<usize> {
    match usize::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?),
    }
}

impl Slice {
    /// RFC 9535 section 2.3.4.2.2.
    fn has(self, at: usize, length: usize) -> bool {
        let (Ok(at), Ok(length)) = (i64::try_from(at), i64::try_from(length)) else { return false };
        let normal = |index: i64| if index >= 0 { index } else { length.saturating_add(index) };
        let (first, is_in) = if self.step > 0 {
            let start = normal(self.start.unwrap_or(0)).clamp(0, length);
            let end = normal(self.end.unwrap_or(length)).clamp(0, length);
            (start, at >= start && at < end)
        } else {
            let start = normal(self.start.unwrap_or(length - 1)).clamp(-1, length - 1);
            let end = self.end.map_or(-1, |end| normal(end).clamp(-1, length - 1));
            (start, at <= start && at > end)
        };
        is_in && self.step != 0 && (at - first) % self.step == 0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({"a": {"b": [1, {"c": 2}]}, "c": 3, "x y": 4})
    }

    #[test]
    fn paths_lead_to_values() {
        let value = document();
        let found = |path: &str| {
            let path = Path::parse(path).unwrap_or_else(|why| panic!("{path}: {why}"));
            path.find(&value).iter().filter_map(|value| value.as_i64()).collect::<Vec<_>>()
        };
        assert_eq!(found("c"), [3]);
        assert_eq!(found("$.a.b[0]"), [1]);
        assert_eq!(found("a['b'][1].c"), [2]);
        assert_eq!(found("$..c"), [2, 3]);
        assert_eq!(found("$[\"x y\"]"), [4]);
        assert_eq!(found("$.a.b[*]"), [1]);
        assert_eq!(found("$.*"), [3, 4]);
        assert_eq!(found("$..*"), [1, 2, 3, 4]);
        assert_eq!(found("$..*..*"), [1, 2]);
        assert_eq!(found("$['c', 'x y']"), [3, 4]);
        assert_eq!(found("$.a.b[-1].c"), [2]);
        assert_eq!(found("$..[0]"), [1]);
        assert_eq!(found("$..b[?(@.c == 2)].c"), [2]);
        assert_eq!([found("$.a.c"), found("$.c.d"), found("$.a.b[9]"), found("$.a.b[-9]")], [[0i64; 0]; 4]);
        assert_eq!(Path::parse("$").unwrap().find(&value), [&value]);
    }

    #[test]
    fn slices_are_those_of_the_rfc() {
        let value = json!([0, 1, 2, 3, 4, 5, 6]);
        let found = |path: &str| {
            let path = Path::parse(path).unwrap_or_else(|why| panic!("{path}: {why}"));
            path.find(&value).iter().filter_map(|value| value.as_i64()).collect::<Vec<_>>()
        };
        assert_eq!(found("$[1:3]"), [1, 2]);
        assert_eq!(found("$[5:]"), [5, 6]);
        assert_eq!(found("$[1:5:2]"), [1, 3]);
        assert_eq!(found("$[5:1:-2]"), [3, 5]);
        assert_eq!(found("$[::-1]").len(), 7);
        assert_eq!(found("$[-2:]"), [5, 6]);
        assert_eq!(found("$[1:-9223372036854775808]"), [0i64; 0]);
        assert_eq!(found("$[::0]"), [0i64; 0]);
        assert_eq!(found("$[0,2,2]"), [0, 2]);
    }

    #[test]
    fn values_are_changed_and_removed() {
        let edited = |path: &str, value: Value, edit: Edit| {
            let mut value = value;
            let changed = Path::parse(path).unwrap().edit(&mut value, &mut |_| edit.clone());
            (changed, value)
        };
        let hidden = Edit::Set(json!("*"));
        let users = json!({"users": [{"t": 1, "u": 2}, {"t": 3}], "t": 4});
        assert_eq!(
            edited("$.users[*].t", users.clone(), hidden.clone()),
            (true, json!({"users": [{"t": "*", "u": 2}, {"t": "*"}], "t": 4}))
        );
        assert_eq!(edited("$..t", users.clone(), Edit::Remove), (true, json!({"users": [{"u": 2}, {}]})));
        assert_eq!(edited("$.users[0]", users.clone(), Edit::Remove).1, json!({"users": [{"t": 3}], "t": 4}));
        assert_eq!(edited("$.none", users.clone(), Edit::Remove), (false, users.clone()));
        assert_eq!(edited("$..t", users.clone(), Edit::Keep), (false, users.clone()));
        assert_eq!(edited("$", users.clone(), hidden), (false, users));
        assert_eq!(edited("$..*", json!({"a": {"b": 1}}), Edit::Remove), (true, json!({})));
    }

    /// Other evaluations of this path take time and memory with the power of its steps.
    #[test]
    fn each_value_is_found_once() {
        let mut value = json!(1);
        for _ in 0..100 {
            value = json!({"a": value, "b": 1});
        }
        let path = Path::parse(&format!("${}", "..*".repeat(STEPS))).unwrap();
        let mut times = 0;
        path.edit(&mut value, &mut |_| {
            times += 1;
            Edit::Keep
        });
        assert_eq!(times, 2 * (100 - STEPS + 1));
    }
}
