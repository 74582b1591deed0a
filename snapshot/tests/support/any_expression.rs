//! Expressions: compiling and testing any JSON ends, without a panic, in the same answer each
//! time, and its negation in the other. The first line is a header's value.

use sdk::expr::Expr;
use sdk::testing::Probe;
use serde_json::Value;

pub fn check(input: &str) {
    let (value, text) = input.split_once('\n').unwrap_or(("", input));
    let Ok(json) = serde_json::from_str::<Value>(text) else { return };
    let Ok(expr) = Expr::compile(&json) else { return };
    // This file is part of the tests of `control` too, which does not see `wire`.
    let is_header = value.chars().all(|c| c == '\t' || !c.is_ascii_control());
    let value = if is_header { value.trim() } else { "" };
    let headers = [("Host", "example.com"), ("X-A", value), ("Cookie", "c=d")];
    let mut probe = Probe::request("GET", "/hello?name=json&n=5", &headers);
    let x = probe.exchange();
    let answer = expr.matches(&x);
    assert_eq!(expr.matches(&x), answer);

    // A list of conditions holds exactly if "not all of them" does not.
    let Value::Array(conditions) = json else { return };
    if matches!(conditions.first(), Some(Value::Array(_))) {
        let negated = std::iter::once(Value::from("!AND")).chain(conditions).collect();
        if let Ok(negated) = Expr::compile(&Value::Array(negated)) {
            assert_ne!(negated.matches(&x), answer);
        }
    }
}
