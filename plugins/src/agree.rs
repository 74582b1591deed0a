//! Settings that a plugin's schema accepts are settings that its type takes: both are written down
//! once each, and this holds them together.
//!
//! The settings are generated from each plugin's schema, at its bounds and beyond them. Settings that
//! the schema refuses do not matter; all that it accepts must become the plugin's `Config`.

use model::Schema;
use sdk::instance::Factory;
use serde_json::{Map, Value, json};

use crate::{ROWS, TYPED};

/// Settings made of each schema.
const ROUNDS: usize = 3_000;

/// Texts that the patterns and formats of schemas ask for, and some that they should not take.
const TEXTS: &[&str] = &[
    "",
    "a",
    "abc",
    "a-b",
    "/",
    "/a",
    "/a/*",
    "^/a(.*)",
    "1",
    "0",
    "200",
    "$remote_addr",
    "X-A",
    "x_a:1",
    "GET",
    "POST",
    "a.example",
    "*.example",
    "127.0.0.1",
    "10.0.0.0/8",
    "::1",
    "127.0.0.1:80",
    "http://127.0.0.1:80/a",
    "https://a.example",
    "text/plain",
    "application/json",
    "{}",
    "a=1",
    "ä",
    "10s",
    "1m",
    "**",
    "sha-256",
];

/// Keys to try in objects whose schema leaves the keys open.
const KEYS: &[&str] = &["a", "X-A", "Content-Type", "200", "a b", "$b"];

struct Maker(fastrand::Rng);

impl Maker {
    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.0.usize(..of.len())]
    }

    fn make(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(fixed) = schema.get("const") {
            return fixed.clone();
        }
        if let Some(list) = schema["enum"].as_array().filter(|list| !list.is_empty()) {
            return self.one(list).clone();
        }
        if let Some(default) = schema.get("default").filter(|_| self.0.u8(..4) == 0) {
            return default.clone();
        }
        let mut made = self.plain(schema, depth);
        for word in ["oneOf", "anyOf"] {
            if let Some(list) = schema[word].as_array().filter(|list| !list.is_empty()) {
                let branch = self.one(list).clone();
                self.merge(&mut made, &branch, schema, depth);
            }
        }
        for branch in schema["allOf"].as_array().into_iter().flatten() {
            self.merge(&mut made, branch, schema, depth);
        }
        made
    }

    /// Adds to an object what a branch of its schema wants; a branch that is a schema of its own makes all.
    fn merge(&mut self, made: &mut Value, branch: &Value, around: &Value, depth: usize) {
        let more = self.make(branch, depth);
        match (made, more) {
            (Value::Object(made), Value::Object(more)) => {
                made.extend(more);
                // `required` of a branch may name what the schema around it describes.
                for name in branch["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let property = &around["properties"][name];
                    if !property.is_null() && branch["properties"][name].is_null() {
                        made.insert(name.to_owned(), self.make(property, depth + 1));
                    }
                }
            }
            (made, more) => *made = more,
        }
    }

    fn plain(&mut self, schema: &Value, depth: usize) -> Value {
        let described = ["properties", "required", "additionalProperties", "patternProperties"];
        let kind = match &schema["type"] {
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => self.one(kinds).as_str().unwrap_or_default().to_owned(),
            _ if described.iter().any(|word| schema.get(word).is_some()) => "object".to_owned(),
            _ => self.one(&["object", "string", "integer", "boolean", "array", "null"]).to_string(),
        };
        match kind.as_str() {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "string" => self.text(schema),
            "integer" => self.integer(schema),
            "number" if self.0.bool() => json!(self.one(&[0.5, 0.001, 1.5, 99.9, 1e9, 1e300])),
            "number" => self.integer(schema),
            "boolean" => json!(self.0.bool()),
            _ => Value::Null,
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut object = Map::new();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // Now and then all, or nothing beyond what must be.
        let often = *self.one(&[0u8, 30, 60, 100]);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.0.u8(..100) < often {
                object.insert(name.clone(), self.make(property, depth + 1));
            }
        }
        let patterns = schema["patternProperties"].as_object().into_iter().flat_map(|all| all.values());
        let others = schema.get("additionalProperties").filter(|others| **others != json!(false));
        let free = schema.get("properties").is_none().then_some(&Value::Null);
        if depth < 5 {
            for value in patterns.chain(others).chain(free) {
                for _ in 0..self.0.usize(..3) {
                    let key = *self.one(KEYS);
                    object.insert(key.to_owned(), self.make(value, depth + 1));
                }
            }
        }
        Value::Object(object)
    }

    fn array(&mut self, schema: &Value, depth: usize) -> Value {
        let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
        let most = schema["maxItems"].as_u64().map_or(least + 2, |most| (most as usize).min(least + 2));
        let length = if depth < 6 { self.0.usize(least..=most) } else { least };
        let item = |maker: &mut Maker, at: usize| match &schema["items"] {
            Value::Array(items) => items.get(at).map_or(Value::Null, |item| maker.make(item, depth + 1)),
            item => maker.make(item, depth + 1),
        };
        Value::Array((0..length).map(|at| item(self, at)).collect())
    }

    fn text(&mut self, schema: &Value) -> Value {
        let mut text = (*self.one(TEXTS)).to_owned();
        let least = schema["minLength"].as_u64().unwrap_or(0) as usize;
        while text.chars().count() < least {
            text.push('x');
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            text = text.chars().take(most as usize).collect();
        }
        json!(text)
    }

    /// At the bounds, and at those of the types that settings have.
    fn integer(&mut self, schema: &Value) -> Value {
        let bound = |word: &str| schema[word].as_f64().map(|bound| bound as i64);
        let least = bound("minimum").or(bound("exclusiveMinimum").map(|least| least + 1));
        let most = bound("maximum").or(bound("exclusiveMaximum").map(|most| most - 1));
        let (low, high) = (least.unwrap_or(i64::MIN), most.unwrap_or(i64::MAX));
        let edges = [
            0,
            1,
            -1,
            200,
            404,
            255,
            256,
            999,
            1000,
            65_535,
            65_536,
            i64::from(i32::MAX),
            i64::from(u32::MAX),
            i64::from(u32::MAX) + 1,
            1 << 53,
            i64::MIN,
            i64::MAX,
        ];
        let mut edges: Vec<i64> = edges.into_iter().filter(|edge| (low..=high).contains(edge)).collect();
        edges.extend(least.into_iter().chain(most));
        let value = *self.one(if edges.is_empty() { &[1] } else { &edges });
        // JSON has one kind of number: 1.0 is an integer, too.
        if self.0.u8(..6) == 0 && value.unsigned_abs() < 1 << 53 { json!(value as f64) } else { json!(value) }
    }
}

/// Lists the settings that the schema accepts and the type rejects, and counts the settings tried.
fn disagreements(row: &dyn Factory, typed: fn(Value) -> Result<(), String>) -> (usize, Vec<String>) {
    let document = row.schema();
    let schema = Schema::new(&document).expect("a schema");
    let mut maker = Maker(fastrand::Rng::with_seed(7));
    let (mut accepted, mut wrong) = (0, Vec::new());
    for _ in 0..ROUNDS {
        let made = maker.make(&document, 0);
        let Ok(parsed) = schema.parse(made.clone()) else { continue };
        accepted += 1;
        let again = schema.parse(parsed.clone());
        assert_eq!(again.as_ref().ok(), Some(&parsed), "{}: defaults are filled in once", row.name());
        if let Err(error) = typed(parsed) {
            wrong.push(format!("{} accepts {made}, but: {error}", row.name()));
        }
    }
    wrong.sort_by_key(String::len);
    (accepted, wrong)
}

#[test]
fn what_a_schema_accepts_its_type_takes() {
    let mut report = Vec::new();
    for (row, typed) in ROWS.iter().zip(TYPED) {
        let (accepted, wrong) = disagreements(*row, *typed);
        // Every value of attach-consumer-label begins with a dollar sign, as few of the texts do.
        let least = if row.name() == "attach-consumer-label" { 5 } else { ROUNDS / 200 };
        if accepted < least {
            report.push(format!(
                "{}: only {accepted} of {ROUNDS} are accepted, which shows little",
                row.name()
            ));
        }
        report.extend(wrong.into_iter().take(3));
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}
