//! Plugins of APISIX that this build lacks: their configurations are checked all the same.
//!
//! One whose absence changes no answer is then accepted, and does nothing; any other keeps its
//! resource out.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use model::apisix_plugins::{self, ApisixPlugin, Subsystem};
use model::{Invalid, Kind, Schema};
use sdk::catalog::SchemaType;
use serde_json::{Value, json};

use crate::ROWS;
use crate::catalog::{blame, or_empty, unknown, with_meta};
use crate::meta::{self, Parts};

/// A plugin of APISIX that does not run here; its schema is compiled when a configuration first uses it.
pub(crate) struct Absent {
    /// Whether all are refused.
    pub strict: bool,
    /// By name.
    compiled: BTreeMap<&'static str, OnceLock<Schemas>>,
}

struct Schemas {
    schema: Schema,
    consumer_schema: Option<Schema>,
    metadata_schema: Option<Schema>,
}

impl Absent {
    /// The HTTP plugin of this name, unless it is built in.
    pub fn find(name: &str) -> Option<&'static ApisixPlugin> {
        if ROWS.iter().any(|row| row.name() == name) {
            return None;
        }
        apisix_plugins::find(Subsystem::Http, name)
    }

    /// Checks a configuration, and whether its resource can be served at all. Metadata alone does
    /// nothing, so that of any plugin may stand there.
    pub fn check(
        &self,
        known: &'static ApisixPlugin,
        config: &Value,
        place: SchemaType,
    ) -> Result<(), Invalid> {
        if meta::disabled(config) {
            return Ok(());
        }
        let schemas = self.schemas(known)?;
        let config = or_empty(config);
        let schema = match place {
            SchemaType::Metadata => {
                return schemas.metadata_schema.as_ref().map_or(Ok(()), |schema| schema.check(&config));
            }
            SchemaType::Consumer => schemas.consumer_schema.as_ref().unwrap_or(&schemas.schema),
            SchemaType::Route | SchemaType::Stream => &schemas.schema,
        };
        let parts = schema.parse(config).and_then(|mut config| Parts::take(&mut config));
        let unseen = known.unseen_in(kind(place));
        parts.map_err(|invalid| {
            let invalid = blame(known.name, invalid);
            match unseen {
                Some(_) => invalid,
                // Without this hint the operator would correct the settings first and learn it only then.
                None => invalid.hint(format!(
                    "remove it: this version does not have the plugin {}; no settings make it work",
                    known.name
                )),
            }
        })?;
        match unseen {
            Some(_) if !self.strict => Ok(()),
            Some(_) => Err(unknown(known.name)
                .hint("remove it, or set `sluice.strict_plugins` to false: without it nothing is answered otherwise")),
            None => Err(unknown(known.name)),
        }
    }

    fn schemas(&self, known: &'static ApisixPlugin) -> Result<&Schemas, Invalid> {
        let place = self.compiled.get(known.name).ok_or_else(|| unknown(known.name))?;
        if let Some(schemas) = place.get() {
            return Ok(schemas);
        }
        let facts = known.facts();
        let other = |schema: Option<Value>| schema.map(|schema| Schema::new(&schema)).transpose();
        let schemas = Schemas {
            schema: Schema::new(&with_meta(facts.schema))?,
            consumer_schema: other(facts.consumer_schema)?,
            metadata_schema: other(facts.metadata_schema.or_else(|| Some(json!({"type": "object"}))))?,
        };
        Ok(place.get_or_init(|| schemas))
    }
}

/// A kind of resource that stands for the place.
fn kind(place: SchemaType) -> Kind {
    match place {
        SchemaType::Consumer => Kind::Consumer,
        SchemaType::Route | SchemaType::Metadata => Kind::Route,
        SchemaType::Stream => Kind::StreamRoute,
    }
}

impl Default for Absent {
    fn default() -> Absent {
        let absent = Subsystem::Http.plugins().iter().filter(|known| Absent::find(known.name).is_some());
        Absent { strict: false, compiled: absent.map(|known| (known.name, OnceLock::new())).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, config: Value, place: SchemaType) -> Result<(), String> {
        let known = Absent::find(name).expect("absent");
        Absent::default().check(known, &config, place).map_err(|invalid| invalid.reason)
    }

    #[test]
    fn what_nobody_would_miss_is_accepted_once_it_fits() {
        assert_eq!(check("loggly", json!({"customer_token": "t"}), SchemaType::Route), Ok(()));
        assert_eq!(
            check("loggly", json!({}), SchemaType::Route).unwrap_err(),
            "failed to check the configuration of plugin loggly err: property \"customer_token\" is required"
        );
        let filter =
            json!({"endpoint": "http://z", "sample_ratio": 1, "_meta": {"filter": [["a", "near", 1]]}});
        assert!(check("loggly", filter, SchemaType::Route).is_err());
    }

    #[test]
    fn any_other_is_refused_by_name_once_it_fits() {
        let functions = json!({"function_uri": "http://o"});
        assert!(
            check("azure-functions", functions, SchemaType::Route)
                .unwrap_err()
                .starts_with("unknown plugin [azure-functions]: it exists in")
        );
        assert!(
            check("azure-functions", json!({}), SchemaType::Route)
                .unwrap_err()
                .ends_with("property \"function_uri\" is required")
        );
        let hint = |name, place| {
            let known = Absent::find(name).expect("absent");
            Absent::default().check(known, &json!({}), place).unwrap_err().hint
        };
        let text =
            hint("azure-functions", SchemaType::Route).expect("it says what correct settings would meet");
        assert!(text.contains("this version does not have the plugin azure-functions"), "{text}");
        assert_eq!(hint("loggly", SchemaType::Route), None, "which is accepted once it fits");
        assert_eq!(check("ldap-auth-advanced", json!({"user_dn": "cn=a"}), SchemaType::Consumer), Ok(()));
        let wrong = json!({"user_dn": 1});
        assert!(
            check("ldap-auth-advanced", wrong, SchemaType::Consumer)
                .unwrap_err()
                .contains("expected string, got number")
        );
        assert_eq!(check("azure-functions", json!({"_meta": {"disable": true}}), SchemaType::Route), Ok(()));
    }

    #[test]
    fn metadata_of_any_of_them_may_stand_there() {
        assert_eq!(check("loggly", json!({"port": 8125}), SchemaType::Metadata), Ok(()));
        assert!(check("loggly", json!({"port": "x"}), SchemaType::Metadata).is_err());
        assert_eq!(check("azure-functions", json!({}), SchemaType::Metadata), Ok(()));
    }

    #[test]
    fn strict_accepts_none() {
        let strict = Absent { strict: true, ..Absent::default() };
        let known = Absent::find("loggly").expect("absent");
        let invalid = strict.check(known, &json!({"customer_token": "t"}), SchemaType::Route).unwrap_err();
        assert!(invalid.reason.starts_with("unknown plugin [loggly]"), "{invalid}");
        assert!(invalid.hint.unwrap().contains("sluice.strict_plugins"));
    }

    #[test]
    fn what_is_built_is_missed_by_nobody() {
        for row in ROWS {
            let known = apisix_plugins::find(Subsystem::Http, row.name());
            assert!(known.is_none_or(|known| known.unseen.is_none()), "{}", row.name());
        }
    }
}
