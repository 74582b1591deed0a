//! `_meta`, which any plugin's configuration may carry, compiled.

use model::Invalid;
use sdk::chain::Meta;
use sdk::expr::Expr;
use serde_json::{Value, json};

/// The beginning of the message for a wrong filter, in APISIX's words.
pub(crate) const WRONG_FILTER: &str = "failed to validate the 'vars' expression: ";

/// The same for a wrong `pre_function`, before the plugin's name.
pub(crate) const WRONG_PRE_FUNCTION: &str = "failed to load _meta.pre_function in plugin ";

/// All of `_meta` of one configuration but `pre_function`.
#[derive(Default)]
pub(crate) struct Parts {
    pub disable: bool,
    pub priority: Option<i32>,
    pub meta: Option<Box<Meta>>,
}

/// The schema of `_meta`, as APISIX puts it into every plugin's.
pub(crate) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "disable": {"type": "boolean"},
            "error_response": {"oneOf": [{"type": "string"}, {"type": "object"}]},
            "priority": {"description": "priority of plugins by customized order", "type": "integer"},
            "filter": {
                "description": "filter determines whether the plugin needs to be executed at runtime",
                "type": "array",
            },
            "pre_function": {
                "description": "function to be executed in each phase before execution of plugins. \
                    The pre_function will have access to two arguments: `conf` and `ctx`.",
                "type": "string",
            },
        },
        "additionalProperties": false,
    })
}

/// The code of `_meta.pre_function`.
pub(crate) fn pre_function(config: &Value) -> Option<&str> {
    config.get("_meta")?.get("pre_function")?.as_str()
}

/// Whether a configuration says `_meta.disable`, also one that was not checked.
pub(crate) fn disabled(config: &Value) -> bool {
    config.get("_meta").and_then(|meta| meta.get("disable")) == Some(&Value::Bool(true))
}

impl Parts {
    /// Takes `_meta` out of a checked configuration.
    pub(crate) fn take(config: &mut Value) -> Result<Parts, Invalid> {
        let Some(mut meta) = config.as_object_mut().and_then(|config| config.shift_remove("_meta")) else {
            return Ok(Parts::default());
        };
        let filter = match meta.get("filter") {
            Some(filter) => Some(
                Expr::compile(filter).map_err(|invalid| invalid.said(WRONG_FILTER).under("/_meta/filter"))?,
            ),
            None => None,
        };
        let error_response = match meta.get_mut("error_response").map(Value::take) {
            Some(Value::String(text)) => Some(("text/plain; charset=utf-8", text.into())),
            Some(object) => Some(("application/json", format!("{object}\n").into())),
            None => None,
        };
        let useful = filter.is_some() || error_response.is_some();
        Ok(Parts {
            disable: meta.get("disable") == Some(&Value::Bool(true)),
            // The schema lets only integers through; one beyond 32 bits sorts at the end it points to.
            priority: meta.get("priority").and_then(Value::as_i64).map(|priority| {
                i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX })
            }),
            meta: useful.then(|| Box::new(Meta { filter, error_response })),
        })
    }
}
