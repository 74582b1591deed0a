//! `$env://NAME`, `$env://NAME/field` and `$secret://manager/id/key` in the settings of plugins, in
//! certificates and in keys.
//!
//! They are replaced while compiling, so neither the store nor the Admin API ever holds the values.
//! Values from secret managers have been fetched before.

use std::borrow::Cow;

use model::Invalid;
use model::references::{ENV, SECRET, is_env, refers};
use sdk::build::Names;
use serde_json::Value;

/// Reads an environment variable.
pub type Env = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Returns `config` with its references replaced; unchanged if it has none.
///
/// # Errors
/// The first reference that cannot be resolved, with its pointer within `config`.
pub(super) fn resolve<'v>(
    config: &'v Value,
    env: &Env,
    names: &dyn Names,
) -> Result<Cow<'v, Value>, Invalid> {
    if !has_reference(config) {
        return Ok(Cow::Borrowed(config));
    }
    let mut config = config.clone();
    replace(&mut config, env, names)?;
    Ok(Cow::Owned(config))
}

fn has_reference(value: &Value) -> bool {
    match value {
        Value::String(text) => refers(text),
        Value::Array(items) => items.iter().any(has_reference),
        Value::Object(fields) => fields.values().any(has_reference),
        _ => false,
    }
}

fn replace(value: &mut Value, env: &Env, names: &dyn Names) -> Result<(), Invalid> {
    match value {
        Value::String(text) if refers(text) => {
            let found = self::text(text, env, names)?.into_owned();
            *value = Value::String(found);
            Ok(())
        }
        Value::Array(items) => items
            .iter_mut()
            .enumerate()
            .try_for_each(|(at, item)| replace(item, env, names).map_err(|invalid| invalid.within(at))),
        Value::Object(fields) => fields
            .iter_mut()
            .try_for_each(|(name, field)| replace(field, env, names).map_err(|invalid| invalid.within(name))),
        _ => Ok(()),
    }
}

/// A text, or the value it refers to.
///
/// # Errors
/// The referenced value is missing or cannot be fetched.
pub(super) fn text<'t>(text: &'t str, env: &Env, names: &dyn Names) -> Result<Cow<'t, str>, Invalid> {
    if !text.starts_with(SECRET) {
        return environment(text, env);
    }
    names.secret(text).map(Cow::Owned).map_err(|why| {
        Invalid::new(format!("the secret cannot be read: {why}"))
            .unread()
            .got(format!("`{text}`"))
            .hint("look at the secret manager, and at its resource under /apisix/admin/secrets")
    })
}

/// A text, or the environment variable it refers to.
///
/// # Errors
/// There is no such variable, it has no such field, or the value is empty: an empty secret would let everyone in.
pub fn environment<'t>(text: &'t str, env: &Env) -> Result<Cow<'t, str>, Invalid> {
    if !is_env(text) {
        return Ok(Cow::Borrowed(text));
    }
    let found = look_up(text, env)?;
    if found.is_empty() {
        let name = &text[ENV.len()..];
        return Err(Invalid::new(format!("the environment variable {name} is empty"))
            .unread()
            .got(format!("`{text}`"))
            .hint("set it before the gateway starts, or write the value here"));
    }
    Ok(Cow::Owned(found))
}

fn look_up(reference: &str, env: &Env) -> Result<String, Invalid> {
    let path = &reference[ENV.len()..];
    let (name, field) = match path.split_once('/') {
        Some((name, field)) => (name, Some(field).filter(|field| !field.is_empty())),
        None => (path, None),
    };
    let Some(text) = env(name) else {
        return Err(Invalid::new(format!("the environment variable {name} is not set"))
            .unread()
            .got(format!("`{reference}`"))
            .hint("set it before the gateway starts, or write the value here"));
    };
    let Some(field) = field else { return Ok(text) };
    // The value is secret: no message may repeat any of it.
    match serde_json::from_str::<Value>(&text)
        .ok()
        .and_then(|mut object| object.get_mut(field).map(Value::take))
    {
        Some(Value::String(text)) => Ok(text),
        Some(other @ (Value::Number(_) | Value::Bool(_))) => Ok(other.to_string()),
        _ => Err(Invalid::new(format!("the environment variable {name} has no field {field}"))
            .unread()
            .expected(format!("a JSON object with the text `{field}`"))
            .got(format!("`{reference}`"))),
    }
}

#[cfg(test)]
mod tests {
    use model::Fault;
    use sdk::testing::FixedNames;
    use serde_json::json;

    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "KEY" => Some("k1".to_owned()),
            "EMPTY" => Some(String::new()),
            "OBJECT" => Some(r#"{"user": "jack", "age": 3, "list": [], "empty": ""}"#.to_owned()),
            _ => None,
        }
    }

    #[test]
    fn references_are_replaced_by_their_values() {
        let config =
            json!({"a": "$env://KEY", "b": ["$ENV://OBJECT/user", {"c": "$env://OBJECT/age"}], "d": "$5"});
        let resolved = resolve(&config, &env, &FixedNames::default()).unwrap();
        assert_eq!(*resolved, json!({"a": "k1", "b": ["jack", {"c": "3"}], "d": "$5"}));
        let plain = json!({"a": "$environment", "b": 1});
        assert!(matches!(resolve(&plain, &env, &FixedNames::default()), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn unresolvable_references_are_refused_without_revealing_secrets() {
        for (text, reason) in [
            ("$env://NONE", "the environment variable NONE is not set"),
            ("$env://OBJECT/none", "the environment variable OBJECT has no field none"),
            ("$env://OBJECT/list", "the environment variable OBJECT has no field list"),
            ("$env://KEY/x", "the environment variable KEY has no field x"),
            ("$env://EMPTY", "the environment variable EMPTY is empty"),
            ("$env://OBJECT/empty", "the environment variable OBJECT/empty is empty"),
        ] {
            let invalid = resolve(&json!({"a": [0, text]}), &env, &FixedNames::default()).unwrap_err();
            assert_eq!((invalid.reason.as_str(), invalid.pointer.as_str()), (reason, "/a/1"));
            assert_eq!(invalid.fault, Fault::Unread);
            assert!(!format!("{invalid:?}").contains("k1") && !format!("{invalid:?}").contains("jack"));
        }
    }
}
