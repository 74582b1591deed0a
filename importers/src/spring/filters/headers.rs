//! Changes of headers by filters in a row, as one change of each header.

use serde_json::{Map, Value, json};

/// The change of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Add(Vec<String>),
    Set(Vec<String>),
    Remove,
}

/// The changes of a message's headers, by name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Headers {
    changes: Vec<(String, Change)>,
}

impl Headers {
    pub fn add(&mut self, name: &str, value: String) {
        let change = match self.take(name) {
            None => Change::Add(vec![value]),
            Some(Change::Add(mut values)) => {
                values.push(value);
                Change::Add(values)
            }
            Some(Change::Set(mut values)) => {
                values.push(value);
                Change::Set(values)
            }
            Some(Change::Remove) => Change::Set(vec![value]),
        };
        self.changes.push((name.to_owned(), change));
    }

    pub fn set(&mut self, name: &str, value: String) {
        self.take(name);
        self.changes.push((name.to_owned(), Change::Set(vec![value])));
    }

    pub fn remove(&mut self, name: &str) {
        self.take(name);
        self.changes.push((name.to_owned(), Change::Remove));
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// As proxy-rewrite takes them.
    pub fn of_request(&self) -> Value {
        let (mut add, mut set, mut remove) = (Map::new(), Map::new(), Vec::new());
        for (name, change) in &self.changes {
            match change {
                Change::Add(values) => drop(add.insert(name.clone(), one_or_more(values))),
                Change::Set(values) => drop(set.insert(name.clone(), one_or_more(values))),
                Change::Remove => remove.push(Value::from(name.as_str())),
            }
        }
        groups(add.into(), set.into(), remove)
    }

    /// As response-rewrite takes them: of several values, the last one is set.
    pub fn of_response(&self) -> Value {
        let (mut add, mut set, mut remove) = (Vec::new(), Map::new(), Vec::new());
        for (name, change) in &self.changes {
            match change {
                Change::Add(values) => {
                    add.extend(values.iter().map(|value| json!(format!("{name}: {value}"))))
                }
                Change::Set(values) => {
                    set.insert(name.clone(), json!(values.last()));
                }
                Change::Remove => remove.push(Value::from(name.as_str())),
            }
        }
        groups(add.into(), set.into(), remove)
    }

    fn take(&mut self, name: &str) -> Option<Change> {
        let at = self.changes.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(self.changes.remove(at).1)
    }
}

fn one_or_more(values: &[String]) -> Value {
    match values {
        [one] => json!(one),
        more => json!(more),
    }
}

fn groups(add: Value, set: Value, remove: Vec<Value>) -> Value {
    let mut all = Map::new();
    for (name, value) in [("add", add), ("set", set), ("remove", remove.into())] {
        let is_empty = match &value {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => true,
        };
        if !is_empty {
            all.insert(name.to_owned(), value);
        }
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_header_become_one() {
        let mut headers = Headers::default();
        headers.add("X-A", "1".to_owned());
        headers.add("x-a", "2".to_owned());
        headers.remove("X-B");
        headers.add("X-B", "3".to_owned());
        headers.set("X-C", "4".to_owned());
        headers.remove("X-C");
        assert_eq!(
            headers.of_request(),
            json!({"add": {"x-a": ["1", "2"]}, "set": {"X-B": "3"}, "remove": ["X-C"]})
        );
        assert_eq!(
            headers.of_response(),
            json!({"add": ["x-a: 1", "x-a: 2"], "set": {"X-B": "3"}, "remove": ["X-C"]})
        );
    }
}
